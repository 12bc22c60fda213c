"""SqueezeExcite as an algorithm: in a custom engine, in the Trainer, on digits."""

from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from engine_core import Engine, Event, Logger, State, Trainer
from engine_core.errors import NothingReplacedWarning
from engine_core_author import RecordingDestination
from surgery_plugin import SqueezeExcite, SqueezeExciteConv2d, apply_squeeze_excite

FORM = ("squeeze_excite", {"min_channels": 8, "latent_channels": 0.5})


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10)
    )


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    data: Any = load_digits()
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    return torch.tensor(data.images, dtype=torch.float32)[order, None] / 16, torch.tensor(data.target)[order]


def train(model: nn.Module, algorithms: Any, **settings: Any) -> Trainer:
    x, y = digits()
    loader = list(zip(x[:1200].split(60), y[:1200].split(60), strict=True))
    given = {"loss_fn": F.cross_entropy, "device": "cpu", "seed": 1, "max_duration": "6ep", **settings}
    given.setdefault("optimizers", lambda parameters: torch.optim.Adam(parameters, lr=5e-3))
    with Trainer(model, loader, algorithms=algorithms, **given) as trainer:
        trainer.fit()
    return trainer


def initial(seed: int, algorithms: Any = (FORM,), rank: int = 0) -> list[torch.Tensor]:
    """Return the new weights as a Trainer's INIT leaves them, on any of two processes."""
    model = net()
    made = [SqueezeExcite(**settings) for _, settings in algorithms]
    state = State(model=model, algorithms=made, seed=seed, rank=rank, world_size=2)
    with Engine(state, Logger()) as engine:
        engine.run_event(Event.INIT)
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
    x, y = digits()
    model, trained = net(), net()
    apply_squeeze_excite(model, min_channels=8, latent_channels=0.5)
    train(trained, [FORM])
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


def test_in_a_custom_loop_an_optimizer_made_before_trains_the_new_parameters() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    state = State(model=model, optimizers=optimizer, algorithms=[SqueezeExcite(8, 4)], seed=1)
    with Engine(state, Logger()) as engine:
        engine.run_event(Event.INIT)
        before = model[2].squeeze_excite.excite.weight.detach().clone()
        x, y = digits()
        F.cross_entropy(model(x[:60]), y[:60]).backward()
        optimizer.step()
    assert not torch.equal(model[2].squeeze_excite.excite.weight, before)


def test_new_weights_follow_from_the_seed_of_the_run_alone() -> None:
    first = initial(1)
    torch.rand(3)
    assert same(initial(1), first)
    assert not same(initial(2), first)


def test_all_processes_of_a_run_draw_the_same_weights() -> None:
    assert same(initial(1, rank=1), initial(1))


def test_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    model = net()
    after_net = torch.get_rng_state()
    state = State(model=model, algorithms=[SqueezeExcite(8, 4)], seed=1)
    with Engine(state, Logger()) as engine:
        engine.run_event(Event.INIT)
    assert torch.equal(torch.get_rng_state(), after_net) and not torch.equal(before, after_net)


def test_two_instances_do_not_put_it_in_twice() -> None:
    destination = RecordingDestination()
    trainer = train(net(), [FORM, FORM], loggers=[destination], max_duration="1ba")
    key = "squeeze_excite/replaced"
    assert [metrics[key] for _, metrics in destination.metrics if key in metrics] == [1, 0]
    assert sum(isinstance(module, SqueezeExciteConv2d) for module in trainer.state.model.modules()) == 1


def test_a_model_with_small_convolutions_causes_a_warning_by_name() -> None:
    with pytest.warns(NothingReplacedWarning, match=r"squeeze_excite .*Conv2d of 64 or more input and output channels"):
        train(net(), ["squeeze_excite"], max_duration="1ba")
