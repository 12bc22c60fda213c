"""Bad input: what is wrong, where, and what to do; and nothing half-done."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from engine_core import Algorithm, Batches, Event, Logger, State, Time, Trainer
from engine_core.errors import ArgumentError, ArgumentTypeError, ClosedEngineError, EngineError

from .parts import Memory, at, batches, linear, rows, trainer, writing_down


class Doze(Algorithm):
    def match(self, event: Event, state: State) -> bool:
        return False

    def apply(self, event: Event, state: State, logger: Logger) -> None:
        pass


DOZE, JOURNAL, MEMORY, MODEL = Doze(), writing_down([], ("fit_start",)), Memory(), linear()
DATASET = TensorDataset(*rows(4))
LOADER = "it has to be an iterable of batches, such as a DataLoader"


def of_time(value: Any) -> str:
    """Return what Time itself says, which its own tests check; the Trainer adds the place."""
    with pytest.raises((ArgumentError, ArgumentTypeError)) as error:
        Time(value)
    return str(error.value)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a model that is none": ({"model": 3}, "model has to be a torch.nn.Module, not 3"),
    "a model's class": (
        {"model": nn.Identity},
        "model has to be a torch.nn.Module, not <class 'torch.nn.modules.linear.Identity'>; write Identity()",
    ),
    "a loss that can't be called": (
        {"loss_fn": 3},
        "loss_fn has to be callable as loss_fn(outputs, targets), not 3",
    ),
    "a loss's class": ({"loss_fn": nn.MSELoss}, "loss_fn is the class MSELoss; write MSELoss()"),
    "an empty loader": (
        {"train_dataloader": []},
        "train_dataloader is empty; with drop_last=True the data has to fill at least one batch",
    ),
    "a loader that drops its only batch": (
        {"train_dataloader": DataLoader(DATASET, batch_size=8, drop_last=True)},
        "train_dataloader is empty; with drop_last=True the data has to fill at least one batch",
    ),
    "a loader that is none": ({"train_dataloader": 3}, f"train_dataloader is 3; {LOADER}"),
    "a loader's name": ({"train_dataloader": "digits"}, f"train_dataloader is 'digits'; {LOADER}"),
    "a dataset for a loader": (
        {"train_dataloader": DATASET},
        (
            "train_dataloader is the dataset TensorDataset, which gives single samples; write DataLoader(dataset, "
            "batch_size=...), with batch_size=None if it gives whole batches"
        ),
    ),
    "an empty evaluation loader": (
        {"eval_dataloader": {"new": []}},
        "the evaluation loader 'new' is empty; with drop_last=True the data has to fill at least one batch",
    ),
    "an evaluation loader that is none": ({"eval_dataloader": 3}, f"the evaluation loader 'eval' is 3; {LOADER}"),
    "a label with a slash": (
        {"eval_dataloader": {"a/b": batches(3)}},
        "an evaluation loader's label has to be a string without '/', not 'a/b'",
    ),
    "a bare number for a duration": ({"max_duration": 10}, f"max_duration: {of_time(10)}"),
    "a duration without a unit": ({"max_duration": "5"}, f"max_duration: {of_time('5')}"),
    "no duration at all": ({"max_duration": "0ep"}, "max_duration has to be positive, not '0ep'"),
    "a negative interval": ({"eval_interval": "-1ba"}, "eval_interval has to be positive, not '-1ba'"),
    "no interval": ({"eval_interval": None}, f"eval_interval: {of_time(None)}"),
    "a microbatch of no rows": (
        {"microbatch_size": 0},
        "microbatch_size has to be a positive int or None, not 0",
    ),
    "half a row": ({"microbatch_size": 2.5}, "microbatch_size has to be a positive int or None, not 2.5"),
    "a norm that is none": (
        {"grad_clip_norm": float("nan")},
        "grad_clip_norm has to be a positive float or None, not nan",
    ),
    "a flag for a number": ({"grad_clip_norm": True}, "grad_clip_norm has to be a positive float or None, not True"),
    "a progress bar that is none": (
        {"progress_bar": 1},
        "progress_bar has to be 'auto', 'lines', True or False, not 1",
    ),
    "an algorithm without match": (
        {"algorithms": [linear]},
        (
            f"algorithm 0 ({linear!r} of type function) has no match and no apply; "
            "an algorithm has match(event, state) and apply(event, state, logger)"
        ),
    ),
    "an algorithm as a callback": (
        {"callbacks": [DOZE]},
        (
            "callback 0 (Doze() of type Doze) has no method named after an event; "
            "it is an algorithm: give it to algorithms=[...]"
        ),
    ),
    "an algorithm as a logger": (
        {"loggers": [DOZE]},
        (
            "logger destination 0 (Doze() of type Doze) has no log_metrics, no log_hyperparameters and no log_traces; "
            "it is an algorithm: give it to algorithms=[...]"
        ),
    ),
    "a callback as an algorithm": (
        {"algorithms": [JOURNAL]},
        (
            f"algorithm 0 ({JOURNAL!r} of type Journal) has no match and no apply; "
            "it is a callback: give it to callbacks=[...]"
        ),
    ),
    "a logger as an algorithm": (
        {"algorithms": [MEMORY]},
        (
            f"algorithm 0 ({MEMORY!r} of type Memory) has no match and no apply; "
            "it is a logger destination: give it to loggers=[...]"
        ),
    ),
    "an algorithm's class": ({"algorithms": [Doze]}, "algorithm 0 is the class Doze; write Doze()"),
    "an algorithm twice": (
        {"algorithms": [DOZE, DOZE]},
        "algorithm 1 (Doze) is listed twice; make a second instance instead",
    ),
    "a callback's class": ({"callbacks": [Memory]}, "callback 0 is the class Memory; write Memory()"),
    "a callback twice": (
        {"callbacks": [JOURNAL, JOURNAL]},
        "callback 1 (Journal) is listed twice; make a second instance instead",
    ),
    "a logger's class": ({"loggers": [Memory]}, "logger destination 0 is the class Memory; write Memory()"),
    "a pass that is none": (
        {"algorithm_passes": [3]},
        "algorithm_passes: a pass is a function (algorithms, event) -> algorithms, not 3",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_it_is_refused_when_the_trainer_is_made_and_nothing_has_started(kind: str) -> None:
    settings, message = REFUSED[kind]
    events: list[str] = []
    watched = {"callbacks": writing_down(events)} if "callbacks" not in settings else {}
    with pytest.raises((ArgumentError, ArgumentTypeError)) as error:
        Trainer(**{"model": MODEL, "progress_bar": False, **watched, **settings})
    assert str(error.value) == message
    assert events == []


MISSING: dict[str, tuple[dict[str, Any], str]] = {
    "no loader": (
        {"train_dataloader": None},
        "there is nothing to train on: give Trainer(train_dataloader=...)",
    ),
    "no optimizer": (
        {"optimizers": None},
        "there is no optimizer: give Trainer(optimizers=torch.optim.SGD(model.parameters(), lr=0.1))",
    ),
    "no loss": (
        {"loss_fn": None},
        (
            "Linear has no loss: give Trainer(loss_fn=...), or the model a method loss(outputs, batch), or, if its "
            "forward computes the loss, Trainer(objective=engine_core.ModelLoss())"
        ),
    ),
    "no duration": ({"max_duration": None}, "how long? give Trainer(max_duration='10ep') or fit('10ep')"),
}


@pytest.mark.parametrize("kind", MISSING)
def test_what_is_missing_is_named_by_fit_before_it_starts(kind: str) -> None:
    settings, message = MISSING[kind]
    events: list[str] = []
    complete = {
        "model": linear(),
        "train_dataloader": batches(8),
        "loss_fn": nn.CrossEntropyLoss(),
        "optimizers": torch.optim.SGD,
        "max_duration": "1ep",
    }
    made = Trainer(**{**complete, **settings}, progress_bar=False, callbacks=writing_down(events))
    with pytest.raises(ArgumentError) as error:
        made.fit()
    assert str(error.value) == message
    assert events == ["init"]


@pytest.mark.parametrize(
    ("duration", "message"),
    [
        (10, f"fit: the duration: {of_time(10)}"),
        ("10", f"fit: the duration: {of_time('10')}"),
        ("0ba", "fit: the duration has to be positive, not '0ba'"),
    ],
)
def test_a_duration_that_fit_cannot_use_is_refused(duration: Any, message: str) -> None:
    made = trainer()
    with pytest.raises((ArgumentError, ArgumentTypeError)) as error:
        made.fit(duration)
    assert str(error.value) == message
    assert made.state.timestamp.batch == 0


def test_a_loader_that_turns_out_empty_is_named_with_the_epoch() -> None:
    class Once:
        def __init__(self) -> None:
            self.batches = iter(batches(8))

        def __iter__(self) -> Iterator[Any]:
            return self.batches

    made = trainer(Once(), max_duration="3ep")
    with pytest.raises(EngineError) as error:
        made.fit()
    assert str(error.value) == (
        "the train_dataloader gave no batches in epoch 1; "
        "it has to be an iterable that starts over for each epoch, as a DataLoader or a list does"
    )


PAIR = (
    "say where they are, Trainer(objective=engine_core.Objective(loss_fn, inputs='input_ids', targets='labels')), or "
    "give the model its own loss(outputs, batch)"
)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (rows(8)[0], f"with loss_fn a batch has to be (inputs, targets), not a Tensor: {PAIR}"),
        ({"x": rows(8)[0]}, f"with loss_fn a batch has to be (inputs, targets), not a dict: {PAIR}"),
        ((rows(8)[0],), f"with loss_fn a batch has to be (inputs, targets), not a tuple of length 1: {PAIR}"),
        (
            [{"x": rows(8)[0]}, {"x": rows(8)[0]}],
            (
                "with loss_fn a batch has to be (inputs, targets), but a list of dict is a list of 2 samples: let the "
                "loader's collate_fn return a tuple if they are inputs and targets; samples need a model with its own "
                "loss(outputs, batch)"
            ),
        ),
    ],
    ids=["a tensor", "a dict", "inputs alone", "samples"],
)
def test_a_batch_that_a_loss_function_cannot_take_is_refused(batch: Any, message: str) -> None:
    made = trainer([batch], eval_dataloader=[batch], batches=Batches(samples=isinstance(batch, list)))
    for run in (made.fit, made.eval):
        with pytest.raises((ArgumentError, ArgumentTypeError)) as error:
            run()
        assert str(error.value) == message


def test_an_error_at_init_closes_what_has_been_opened() -> None:
    events: list[str] = []

    class Closing(type(writing_down(events))):  # type: ignore[misc]
        def close(self, state: State, logger: Logger) -> None:
            events.append("close")

        def post_close(self) -> None:
            events.append("post_close")

    def fail(state: State) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        trainer(callbacks=[Closing(), at("init", fail)])
    assert events == ["init", "close", "post_close"]


def test_a_callback_of_a_trainer_that_failed_can_be_used_again() -> None:
    memory = Memory()
    with pytest.raises(ArgumentError):
        trainer(loggers=memory, precision="fp33")
    trainer(loggers=memory).fit()
    assert len(memory.metrics) == 3


def test_a_closed_trainer_is_refused_also_where_it_has_nothing_to_do() -> None:
    with trainer(eval_dataloader=batches(3)) as made:
        made.fit()
    made.close()
    for run in (made.fit, made.eval):
        with pytest.raises(ClosedEngineError) as error:
            run()
        assert str(error.value) == "the trainer is closed; make a new one"


def test_one_callback_cannot_serve_two_open_trainers() -> None:
    memory = Memory()
    with trainer(loggers=memory), pytest.raises(EngineError, match="Memory is still open on another engine"):
        trainer(loggers=memory)
    trainer(loggers=memory).fit()
