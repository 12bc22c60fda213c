"""Which layers LayerFreezing counts: in a resumed run, with blocks that are dropped, in a custom loop."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from engine_core import Engine, Event, Logger, State, Trainer
from optim_plugin import LayerFreezing


def make_data() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    return [(torch.randn(8, 4, generator=generator), torch.randint(0, 3, (8,), generator=generator)) for _ in range(5)]


def make_net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)), nn.Linear(4, 3))


def make_trainer(algorithm: LayerFreezing, model: Any, data: Any = None) -> Trainer:
    """Return one of 20 batches."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    given: dict[str, Any] = {"max_duration": "4ep", "loss_fn": F.cross_entropy, "optimizers": optimizer}
    return Trainer(model, make_data() if data is None else data, algorithms=algorithm, seed=1, device="cpu", **given)


NET_LAYERS = [f"net.{i}" for i in range(5)]


class WithUnused(nn.Module):
    """Defines a last layer that is not part of the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.unused = make_net(), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("start", [0.0, 0.5])
def test_the_last_layer_with_a_gradient_is_never_frozen(start: float) -> None:
    algorithm, model = LayerFreezing(start), WithUnused()
    with make_trainer(algorithm, model) as trainer:
        trainer.fit()
    assert algorithm.state_dict() == {"frozen": 4, "layers": NET_LAYERS}
    assert [p.requires_grad for p in model.net[4].parameters()] == [True, True]


@pytest.mark.parametrize("at", [9, 10, 11, 12, 15])
def test_resumed_where_layers_are_counted_it_counts_the_same(at: int) -> None:
    """With start=0.5 and 20 batches they count after batch 11; a resumed run has no gradients before its own."""
    torch.manual_seed(1)
    models = [WithUnused() for _ in range(3)]
    for model in models[1:]:
        model.load_state_dict(models[0].state_dict())
    whole, first, rest = LayerFreezing(), LayerFreezing(), LayerFreezing()
    with make_trainer(whole, models[0]) as trainer:
        trainer.fit()
    with make_trainer(first, models[1]) as before:
        before.fit(f"{at}ba")
    with make_trainer(rest, models[2]) as after:
        models[2].load_state_dict(models[1].state_dict())
        after.state.optimizers[0].load_state_dict(before.state.optimizers[0].state_dict())
        rest.load_state_dict(first.state_dict())
        after.state.timestamp = before.state.timestamp
        after._session.batches = iter(make_data()[at % 5 :])
        after._session.feed.taken, after._session.feed.is_exhausted = at % 5, False
        after.fit()
    assert first.state_dict() == ({} if at < 11 else {"frozen": max(0, (at - 11) // 2), "layers": NET_LAYERS})
    assert rest.state_dict() == whole.state_dict() == {"frozen": 4, "layers": NET_LAYERS}
    assert all(map(torch.equal, models[0].state_dict().values(), models[2].state_dict().values()))


def test_with_a_loader_without_length_layers_count_where_an_epoch_ends() -> None:
    """Only there `start` passes, so a run that is saved there has to know its layers."""
    algorithm = LayerFreezing(0.4)
    with make_trainer(algorithm, make_net(), iter_of(make_data())) as trainer:
        trainer.fit("2ep")
    assert algorithm.state_dict() == {"frozen": 0, "layers": [str(i) for i in range(5)]}


def iter_of(batches: list[Any]) -> Any:
    """Return a loader of these batches that does not know how many they are."""
    return type("Unsized", (), {"__iter__": lambda self: iter(batches)})()


class SometimesShort(nn.Module):
    """Leaves out its last layers in some steps, as dropped blocks do."""

    def __init__(self, length_of: Callable[[int], int]) -> None:
        super().__init__()
        self.net, self.length_of, self.step = make_net(), length_of, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.step += 1
        return self.net[: self.length_of(self.step)](x)[:, :3]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("length_of", "layers", "frozen"),
    [
        (lambda step: 1 if step == 11 else 5, 5, 4),  # the step after which they are counted
        (lambda step: 5 if step == 14 else 4, 5, 4),
        (lambda step: min(5, step - 10) if step > 11 else 5 if step < 11 else 1, 5, 4),  # one more in each step
        (lambda step: 5 if step < 11 else 2, 2, 1),
    ],
    ids=["in one step not", "in one step", "one after the other", "no more"],
)
def test_a_layer_that_had_no_gradient_counts_from_its_next_one_on(
    length_of: Callable[[int], int], layers: int, frozen: int
) -> None:
    algorithm = LayerFreezing()
    with make_trainer(algorithm, SometimesShort(length_of)) as trainer:
        trainer.fit("17ba" if layers == 5 else "20ba")
        assert algorithm.state_dict()["layers"] == NET_LAYERS[:layers]
        if layers == 5:
            trainer.state.model.length_of = lambda step: 5
            trainer.fit()
    assert algorithm.state_dict() == {"frozen": frozen, "layers": NET_LAYERS[:layers]}


@pytest.mark.parametrize(
    ("checkpoints", "resets", "layers"),
    [(False, False, NET_LAYERS), (True, False, NET_LAYERS), (True, True, [*NET_LAYERS, "unused"])],
)
def test_a_custom_loop_counts_by_the_gradients_it_leaves(checkpoints: bool, resets: bool, layers: list[str]) -> None:
    model, algorithm = WithUnused(), LayerFreezing(start=0)
    state = State(model=model, algorithms=[algorithm], max_duration="6ba", seed=1)
    with Engine(state, Logger()) as engine:
        for x, y in make_data():
            engine.run_event(Event.BATCH_START)
            F.cross_entropy(model(x), y).backward()
            state.timestamp = state.timestamp.to_next_batch(samples=8)
            if resets:
                model.zero_grad()
            if checkpoints:
                engine.run_event(Event.BATCH_CHECKPOINT)
    assert algorithm.state_dict() == {"frozen": len(layers) * 4 // 6, "layers": layers}
