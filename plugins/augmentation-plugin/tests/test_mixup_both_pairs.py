"""A mixed forward has to be followed by a mixed loss: a loop that forgets it gets an error, others do not."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from augmentation_parts import BOTH, FORMS
from parts import at
from torch import nn
from torch.nn import functional as F

from augmentation_plugin import CutMix, MixUp
from augmentation_plugin.mixing import Mixing
from engine_core import Engine, Logger, Objective, State, Trainer
from engine_core.errors import EngineError

EVENTS = ("after_forward", "before_loss", "after_loss")
BATCH = torch.rand(4, 3, 8, 8), torch.arange(4)
FORWARD, LOSS = ("before_forward", "after_forward"), ("before_loss", "after_loss")


def own(algorithm: Mixing) -> tuple[State, Engine]:
    """Return an engine for a hand-written loop."""
    state = State(model=nn.Identity(), algorithms=[algorithm], loss_fn=F.cross_entropy, seed=1, batch=BATCH)
    state.outputs = torch.zeros(4, 4)
    return state, Engine(state, Logger())


def fire(engine: Engine, *events: str) -> None:
    for event in events:
        engine.run_event(event)


@FORMS
@pytest.mark.parametrize(
    "step", [FORWARD, ("before_train_batch", *FORWARD, "after_train_batch")], ids=["forward", "train batch"]
)
def test_a_loop_that_fires_no_pair_of_the_loss_gets_an_error_in_its_second_step(
    kind: type[Mixing], interpolate_loss: bool, step: tuple[str, ...]
) -> None:
    with own(kind(interpolate_loss=interpolate_loss))[1] as engine:
        fire(engine, *step)
        with pytest.raises(EngineError, match="never saw BEFORE_LOSS: the loop has to fire both pairs"):
            fire(engine, step[0])


@BOTH
def test_half_a_pair_of_the_loss_is_not_enough(kind: type[Mixing]) -> None:
    with own(kind())[1] as engine:
        fire(engine, *FORWARD)
        with pytest.raises(EngineError, match="never saw BEFORE_LOSS"):
            fire(engine, "after_loss")
    with own(kind(interpolate_loss=True))[1] as engine:
        fire(engine, *FORWARD, "before_loss")
        with pytest.raises(EngineError, match="never saw AFTER_LOSS"):
            fire(engine, "before_forward")


@BOTH
def test_the_error_comes_once_and_only_in_the_run_that_forgot(kind: type[Mixing]) -> None:
    algorithm = kind()
    with own(algorithm)[1] as engine:
        fire(engine, *FORWARD)
        with pytest.raises(EngineError, match="both pairs"):
            fire(engine, *FORWARD)
        fire(engine, *FORWARD)
    with own(algorithm)[1] as engine:
        fire(engine, *FORWARD, *LOSS)


class Failing(nn.Module):
    """A net, loss function and callback that raises once, at a chosen place."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.linear, self.where = nn.Linear(3, 4), where

    def fail(self, where: str) -> None:
        if where == self.where:
            self.where = "nowhere"
            raise ZeroDivisionError

    def forward(self, images: torch.Tensor) -> Any:
        self.fail("forward")
        return self.linear(images.mean((2, 3)))

    def loss_fn(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        self.fail("loss")
        return F.cross_entropy(outputs, targets)


@pytest.mark.parametrize(("kind", "interpolate_loss", "microbatch_size"), [(MixUp, False, 2), (CutMix, True, None)])
@pytest.mark.parametrize("where", ["forward", "after_forward", "before_loss", "loss", "after_loss"])
def test_batch_and_loss_are_back_after_an_exception_wherever_it_was_and_training_continues(
    kind: type[Mixing], where: str, interpolate_loss: bool, microbatch_size: int | None
) -> None:
    model = Failing(where)
    with Trainer(
        model,
        [BATCH] * 3,
        max_duration="2ba",
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        objective=Objective(model.loss_fn, check=False),
        algorithms=kind(interpolate_loss=interpolate_loss),
        callbacks=[at(event, lambda state, event=event: model.fail(event)) for event in EVENTS],
        microbatch_size=microbatch_size,
    ) as trainer:
        trainer.state.loss = before = torch.tensor(3.0)
        with pytest.raises(ZeroDivisionError) as raised:
            trainer.fit()
        assert "could not undo" not in str(getattr(raised.value, "__notes__", []))
        assert trainer.state.batch is BATCH
        assert trainer.state.loss is before or where not in ("forward", "loss")
        trainer.fit("2ba")
    assert trainer.state.timestamp.batch == 2


@FORMS
@pytest.mark.parametrize(
    ("begun", "done"),
    [
        ([], ["before_forward"]),
        *((["before_train_batch"], done) for done in (["before_forward"], FORWARD, [*FORWARD, "before_loss"])),
    ],
)
def test_a_loop_that_restores_continues_after_an_exception(
    kind: type[Mixing], begun: list[str], done: Sequence[str], interpolate_loss: bool
) -> None:
    state, engine = own(kind(interpolate_loss=interpolate_loss))
    with engine:
        with pytest.raises(ZeroDivisionError), engine.restoring():
            fire(engine, *begun, *done)
            raise ZeroDivisionError
        assert state.batch is BATCH
        fire(engine, *begun, *FORWARD, *LOSS)


@BOTH
def test_in_a_handler_of_exceptions_nothing_is_blamed_and_all_is_mixed(kind: type[Mixing]) -> None:
    state, engine = own(kind(1.0))
    with engine:
        try:
            fire(engine, *FORWARD, "no event")
        except ValueError:
            fire(engine, *FORWARD, "before_loss")
            assert state.batch[1].shape == (4, 4)
            fire(engine, "after_loss")
