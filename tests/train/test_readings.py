"""The loss of each step: logged with its step, warned of if it is not finite, one step late on a device."""

import math
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from engine_core import Logger, State, Timestamp
from engine_core.errors import NonFiniteLossWarning
from engine_core.trainer.metrics import LossReader

from .parts import Memory, at, batches, linear, notes, trainer


def spoiled(at_batch: int, value: float = float("nan")) -> Any:
    """Return a loss function that gives `value` at one call."""
    calls = iter(range(100))
    return lambda outputs, targets: outputs.mean() * (value if next(calls) == at_batch else 1.0)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("logged", [False, True])
def test_a_loss_that_is_not_finite_warns_with_its_step_and_training_continues(value: float, logged: bool) -> None:
    made = trainer(batches(8, 8, 8), loss_fn=spoiled(1, value), loggers=[Memory()] if logged else [])
    with pytest.warns(NonFiniteLossWarning) as caught:
        made.fit()
    assert str(caught[0].message).split(" at ")[1] == (
        "batch 1 (epoch 0); training continues. "
        "To skip such a batch, stop or roll back instead: callbacks=[('loss_guard', {'policy': 'skip'})]"
    )
    assert made.state.timestamp.batch == 3


def test_it_warns_each_time_that_the_loss_turns_not_finite_and_not_at_each_step_after() -> None:
    bad = {1, 2, 4}
    calls = iter(range(100))

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return 0 * outputs.mean() + (float("nan") if next(calls) in bad else 1.0)

    with pytest.warns(NonFiniteLossWarning) as caught:
        trainer(batches(8, 8, 8), max_duration="2ep", loss_fn=loss).fit()
    assert [str(w.message).split(";")[0] for w in caught] == [
        "the training loss is nan at batch 1 (epoch 0)",
        "the training loss is nan at batch 4 (epoch 1)",
    ]


def test_asked_to_stop_it_stops_before_the_step_that_would_spoil_the_weights() -> None:
    model = linear()
    made = trainer(batches(8, 8, 8), model, loss_fn=spoiled(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error", NonFiniteLossWarning)
        with pytest.raises(NonFiniteLossWarning, match="nan at batch 1"):
            made.fit()
    assert all(p.isfinite().all() for p in model.parameters())
    made.fit()
    assert (made.state.timestamp.epoch, made.state.timestamp.batch) == (1, 2)


def test_a_part_that_is_not_finite_is_logged_as_it_is() -> None:
    memory = Memory()

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"total": outputs.mean(), "bad": outputs.mean() * float("inf")}

    trainer(batches(8), loss_fn=loss, loggers=memory).fit()
    ((_, value),) = memory.values("train/loss/bad")
    assert math.isinf(value)


def readings(late: bool, losses: list[float]) -> tuple[list[Any], list[str]]:
    """Return what a reader logs and warns of, with what it has said after each step."""
    memory, state = Memory(), State(optimizers=[torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.5)])
    reader = LossReader(state, Logger([memory]), late=late)
    said: list[Any] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step, loss in enumerate(losses):
            state.timestamp = Timestamp(batch=step)
            reader.take(torch.tensor(loss, requires_grad=True), {"a": torch.tensor(loss / 2)})
            said.append(len(memory.metrics))
        reader.flush()
        reader.flush()
    return [memory.metrics, said], [str(w.message).split(";")[0] for w in caught]


def test_read_late_it_is_the_same_one_step_later_and_flush_reads_the_last() -> None:
    (at_once, at_once_said), warned = readings(False, [1.0, float("inf"), 3.0])
    (late, late_said), warned_late = readings(True, [1.0, float("inf"), 3.0])
    assert at_once == late
    assert at_once[0] == (0, {"train/loss": 1.0, "train/loss/a": 0.5, "train/lr/0": 0.5})
    assert (at_once_said, late_said) == ([1, 2, 3], [0, 1, 2])
    assert warned == warned_late == ["the training loss is inf at batch 1 (epoch 0)"]


def test_what_is_held_keeps_no_graph_alive() -> None:
    reader = LossReader(State(), Logger([Memory()]), late=True)
    loss = torch.ones((), requires_grad=True) * 2
    reader.take(loss, {"part": loss})
    held: Any = reader._held
    assert [late._value.requires_grad for late in (held.loss, held.parts["part"])] == [False, False]


def late_trainer(memory: Memory, **settings: Any) -> Any:
    """Return a trainer that reads losses late, as it does on a device."""
    made = trainer(loggers=memory, **settings)
    made._session.readings.is_late = True
    return made


def test_read_late_a_fit_logs_what_it_logs_otherwise_and_in_the_same_order() -> None:
    """What is held is read before an evaluation and at the end of fit."""
    settings = {"data": batches(8, 8, 8), "eval_dataloader": batches(3), "eval_interval": "2ba", "max_duration": "2ep"}
    late, at_once = Memory(), Memory()
    late_trainer(late, **settings).fit()
    trainer(loggers=at_once, **settings).fit()
    assert late.metrics == at_once.metrics
    assert [next(iter(metrics)) for _, metrics in late.metrics][:3] == ["train/loss", "train/loss", "eval/loss"]


def test_read_late_the_last_loss_is_not_lost_when_training_breaks_off() -> None:
    def stop(state: State) -> None:
        if state.timestamp.batch == 1:
            raise KeyboardInterrupt

    memory = Memory()
    made = late_trainer(memory, callbacks=at("before_forward", stop))
    with pytest.raises(KeyboardInterrupt):
        made.fit()
    assert [step for step, _ in memory.metrics] == [0]


def test_read_late_a_bad_loss_never_takes_the_place_of_what_broke_training_off() -> None:
    def stop(state: State) -> None:
        if state.timestamp.batch == 1:
            raise KeyboardInterrupt

    made = late_trainer(Memory(), loss_fn=spoiled(0), callbacks=at("before_forward", stop))
    with warnings.catch_warnings():
        warnings.simplefilter("error", NonFiniteLossWarning)
        with pytest.raises(KeyboardInterrupt) as error:
            made.fit()
    assert notes(error)[-1].startswith("the loss of the last batch could not be read: the training loss is nan")


def test_nothing_is_read_late_twice_or_by_the_next_fit() -> None:
    memory = Memory()
    made = late_trainer(memory, data=batches(8, 8), max_duration="2ep")
    made.fit("1ba")
    made.fit("2ba")
    assert [step for step, _ in memory.values("train/loss")] == [0, 1, 2]
