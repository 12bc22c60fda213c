"""SqueezeExcite as an algorithm: in a custom engine, in the Trainer, on digits."""

from typing import Any

import torch
from surgery_parts import digits, run_init, train_on_digits
from torch import nn

from engine_core import Trainer
from engine_core_author import RecordingDestination
from surgery_plugin import SqueezeExcite, SqueezeExciteConv2d, apply_squeeze_excite

FORM = ("squeeze_excite", {"min_channels": 8, "latent_channels": 0.5})


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10)
    )


def shuffled() -> tuple[torch.Tensor, torch.Tensor]:
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    x, y = digits()
    return x[order], y[order]


def train(model: nn.Module, algorithms: Any, **settings: Any) -> Trainer:
    adam = lambda parameters: torch.optim.Adam(parameters, lr=5e-3)  # noqa: E731
    return train_on_digits(model, algorithms, images=shuffled(), **{"optimizers": adam, **settings})


def initial(seed: int, rank: int = 0) -> list[torch.Tensor]:
    """Return the new weights as a Trainer's INIT leaves them, on any of two processes."""
    model = net()
    run_init(model, SqueezeExcite(8, 0.5), seed=seed, rank=rank, world_size=2)
    return [value for name, value in model.state_dict().items() if "squeeze_excite" in name]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) > 0 and all(map(torch.equal, one, other))


def gates_of(model: nn.Sequential, x: torch.Tensor) -> torch.Tensor:
    """Return the gates of the images (n, 16)."""
    seen: list[torch.Tensor] = []
    excite = model[2].squeeze_excite.excite
    handle = excite.register_forward_hook(lambda _, __, logits: seen.append(torch.sigmoid(logits)))
    with torch.no_grad():
        model(x)
    handle.remove()
    return seen[0]


def test_on_digits_the_net_learns_which_channels_count() -> None:
    """At first each gate is about one half, whatever the image; then channels differ, and images do."""
    x, y = shuffled()
    model, trained = net(), net()
    apply_squeeze_excite(model, min_channels=8, latent_channels=0.5)
    train(trained, [FORM], max_duration="6ep")
    before, after = gates_of(model, x[1200:]), gates_of(trained, x[1200:])
    apart = [float(gates.mean(0).max() - gates.mean(0).min()) for gates in (before, after)]
    assert (before - 0.5).abs().max() < 0.2
    assert apart[0] < 0.15 and apart[1] > 0.2
    assert after.std(0).max() > before.std(0).max()
    assert (trained(x[1200:]).argmax(1) == y[1200:]).float().mean() > 0.9


def test_an_optimizer_made_before_the_trainer_trains_the_new_parameters() -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    train(model, [FORM], optimizers=optimizer, max_duration="2ba")
    assert {id(p) for p in optimizer.param_groups[0]["params"]} == {id(p) for p in model.parameters()}
    assert {id(p) for p in optimizer.state} == {id(p) for p in model.parameters()}
    new = [value for name, value in model.state_dict().items() if "squeeze_excite" in name]
    assert not any(map(torch.equal, new, initial(1)))


def test_new_weights_follow_from_the_seed_of_the_run_alone_on_all_processes() -> None:
    first, before = initial(1), torch.get_rng_state()
    torch.rand(3)
    assert same(initial(1), first) and same(initial(1, rank=1), first)
    assert not same(initial(2), first)
    torch.manual_seed(0)
    net()
    assert torch.equal(torch.get_rng_state(), before)


def test_two_instances_do_not_put_it_in_twice() -> None:
    destination = RecordingDestination()
    trainer = train(net(), [FORM, FORM], loggers=[destination], max_duration="1ba")
    key = "squeeze_excite/replaced"
    assert [metrics[key] for _, metrics in destination.metrics if key in metrics] == [1, 0]
    assert sum(isinstance(module, SqueezeExciteConv2d) for module in trainer.state.model.modules()) == 1
