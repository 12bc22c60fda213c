"""Which layers LayerFreezing counts: in a resumed run, with blocks that are dropped, in a custom loop."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from optim_parts import pause_after, same
from parts import Memory, batches, trainer
from torch import nn
from torch.nn import functional as F

from engine_core import Engine, Event, Logger, State, Trainer
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from optim_plugin import LayerFreezing


def make_net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)), nn.Linear(4, 3))


DATA = batches(8, 8, 8, 8, 8)


def make_trainer(algorithm: LayerFreezing, model: Any, data: Any = DATA, **settings: Any) -> Trainer:
    """Return one of 20 batches."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    given = {"max_duration": "4ep", "optimizers": optimizer, "algorithms": algorithm, **settings}
    made: Trainer = trainer(data, model, seed=1, **given)
    return made


NET_LAYERS = [f"net.{i}" for i in range(5)]


class WithUnused(nn.Module):
    """Defines a last layer that is not part of the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.unused = make_net(), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)  # type: ignore[no-any-return]


def test_the_last_layer_with_a_gradient_is_never_frozen() -> None:
    algorithm, model = LayerFreezing(start=0), WithUnused()
    with make_trainer(algorithm, model) as trainer:
        trainer.fit()
    assert algorithm.state_dict() == {"frozen": 4, "layers": NET_LAYERS}
    assert [p.requires_grad for p in model.net[4].parameters()] == [True, True]


@pytest.mark.parametrize("at", [9, 11, 12, 13, 17])
def test_a_resumed_run_counts_freezes_logs_and_trains_as_the_uninterrupted_one(tmp_path: Path, at: int) -> None:
    """Layers count after batch 11; the checkpoint's model has all trainable again, and there are no gradients yet."""

    def run(folder: str, *callbacks: Any, **settings: Any) -> tuple[Any, Any, Any]:
        algorithm, logged, saver = LayerFreezing(), Memory(), CheckpointSaver(tmp_path / folder, interval="100ep")
        how = {"callbacks": [saver, *callbacks], "loggers": [logged], **settings}
        with make_trainer(algorithm, WithUnused(), **how) as trainer:
            trainer.fit()
        return algorithm.state_dict(), trainer.state.model.state_dict(), logged.values("layer_freezing/frozen")

    whole = run("whole")
    first = run("parts", pause_after(at))
    rest = run("parts", load_path=tmp_path / "parts")
    assert first[0] == ({} if at < 11 else {"frozen": max(0, (at - 11) // 2), "layers": NET_LAYERS})
    assert rest[0] == whole[0] == {"frozen": 4, "layers": NET_LAYERS}
    assert same(rest[1], whole[1])
    assert first[2] + rest[2] == whole[2] == [(12, 1), (14, 2), (16, 3), (18, 4)]


def test_with_a_loader_without_length_layers_count_where_an_epoch_ends() -> None:
    """Only there `start` passes, so a run that is saved there has to know its layers."""
    algorithm = LayerFreezing(0.4)
    with make_trainer(algorithm, make_net(), iter_of(DATA)) as trainer:
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
        (lambda step: min(5, step - 10) if step > 11 else 5 if step < 11 else 1, 5, 4),  # one more in each step
        (lambda step: 5 if step < 11 else 2, 2, 1),
    ],
    ids=["in one step not", "one after the other", "no more"],
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
        for x, y in DATA:
            engine.run_event(Event.BATCH_START)
            F.cross_entropy(model(x), y).backward()
            state.timestamp = state.timestamp.to_next_batch(samples=8)
            if resets:
                model.zero_grad()
            if checkpoints:
                engine.run_event(Event.BATCH_CHECKPOINT)
    assert algorithm.state_dict() == {"frozen": len(layers) * 4 // 6, "layers": layers}
