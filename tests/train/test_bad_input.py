"""Bad input: what is wrong, where, and what to do; and nothing half-done."""

import re

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from engine_core import Algorithm, Batches, Trainer
from engine_core.errors import ArgumentError, ArgumentTypeError, ClosedEngineError, EngineError

from .parts import Memory, at, batches, linear, rows, trainer, writing_down


class Doze(Algorithm):
    def match(self, event, state):
        return False

    def apply(self, event, state, logger):
        pass


DOZE, JOURNAL, MEMORY, MODEL = Doze(), writing_down([], ("fit_start",)), Memory(), linear()
DATASET = TensorDataset(*rows(4))
EMPTY = "is empty; with drop_last=True the data has to fill at least one batch"
LOADER = "it has to be an iterable of batches, such as a DataLoader"


OTHERS = {"model": MODEL, "progress_bar": False}
REFUSED = [
    ({"model": 3}, "model has to be a torch.nn.Module, not 3"),
    ({"model": nn.Identity}, "not <class 'torch.nn.modules.linear.Identity'>; write Identity()"),
    ({"loss_fn": 3}, "loss_fn has to be callable as loss_fn(outputs, targets), not 3"),
    ({"loss_fn": nn.MSELoss}, "loss_fn is the class MSELoss; write MSELoss()"),
    ({"train_dataloader": []}, f"train_dataloader {EMPTY}"),
    ({"train_dataloader": DataLoader(DATASET, batch_size=8, drop_last=True)}, f"train_dataloader {EMPTY}"),
    ({"train_dataloader": "digits"}, f"train_dataloader is 'digits'; {LOADER}"),
    ({"train_dataloader": DATASET}, "is the dataset TensorDataset, which gives single samples; write DataLoader("),
    ({"eval_dataloader": {"new": []}}, f"the evaluation loader 'new' {EMPTY}"),
    ({"eval_dataloader": 3}, f"the evaluation loader 'eval' is 3; {LOADER}"),
    ({"eval_dataloader": {"a/b": batches(3)}}, "label has to be a string without '/', not 'a/b'"),
    ({"max_duration": 10}, "max_duration: "),
    ({"max_duration": "5"}, "max_duration: '5' "),
    ({"max_duration": "0ep"}, "max_duration has to be positive, not '0ep'"),
    ({"eval_interval": None}, "eval_interval: "),
    ({"microbatch_size": 0}, "microbatch_size has to be a positive int or None, not 0"),
    ({"microbatch_size": 2.5}, "microbatch_size has to be a positive int or None, not 2.5"),
    ({"grad_clip_norm": float("nan")}, "grad_clip_norm has to be a positive float or None, not nan"),
    ({"grad_clip_norm": True}, "grad_clip_norm has to be a positive float or None, not True"),
    ({"progress_bar": 1}, "progress_bar has to be 'auto', 'lines', True or False, not 1"),
    ({"algorithms": [linear]}, "of type function) has no match and no apply; an algorithm has match(event, state)"),
    ({"algorithms": [JOURNAL]}, "has no match and no apply; it is a callback: give it to callbacks=[...]"),
    ({"algorithms": [MEMORY]}, "has no match and no apply; it is a logger destination: give it to loggers=[...]"),
    ({"algorithms": [Doze]}, "algorithm 0 is the class Doze; write Doze()"),
    ({"algorithms": [DOZE, DOZE]}, "algorithm 1 (Doze) is listed twice; make a second instance instead"),
    ({"callbacks": [DOZE]}, "no method named after an event; it is an algorithm: give it to algorithms=[...]"),
    ({"callbacks": [Memory]}, "callback 0 is the class Memory; write Memory()"),
    ({"callbacks": [JOURNAL, JOURNAL]}, "callback 1 (Journal) is listed twice; make a second instance instead"),
    ({"loggers": [DOZE]}, "and no log_traces; it is an algorithm: give it to algorithms=[...]"),
    ({"algorithm_passes": [3]}, "a pass is a function (algorithms, event) -> algorithms, not 3"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_it_is_refused_when_the_trainer_is_made_and_nothing_has_started(settings, message):
    events = []
    watched = {"callbacks": writing_down(events)} if "callbacks" not in settings else {}
    with pytest.raises((ArgumentError, ArgumentTypeError), match=re.escape(message)):
        Trainer(**{**OTHERS, **watched, **settings})
    assert events == []


MISSING = [
    ("train_dataloader", "there is nothing to train on: give Trainer(train_dataloader=...)"),
    ("optimizers", "there is no optimizer: give Trainer(optimizers=torch.optim.SGD("),
    ("loss_fn", "Linear has no loss: give Trainer(loss_fn=...), or the model a method loss(outputs, batch)"),
    ("max_duration", "how long? give Trainer(max_duration='10ep') or fit('10ep')"),
]


@pytest.mark.parametrize(("name", "message"), MISSING)
def test_what_is_missing_is_named_by_fit_before_it_starts(name, message):
    events = []
    complete = {
        "train_dataloader": batches(8),
        "loss_fn": nn.CrossEntropyLoss(),
        "optimizers": torch.optim.SGD,
        "max_duration": "1ep",
    }
    made = Trainer(linear(), **{**complete, name: None}, progress_bar=False, callbacks=writing_down(events))
    with pytest.raises(ArgumentError, match=re.escape(message)):
        made.fit()
    assert events == ["init"]


@pytest.mark.parametrize("duration", [10, "10", "0ba"])
def test_a_duration_that_fit_cannot_use_is_refused(duration):
    made = trainer()
    with pytest.raises((ArgumentError, ArgumentTypeError), match=f"^fit: the duration.*{duration}"):
        made.fit(duration)
    assert made.state.timestamp.batch == 0


def test_a_loader_that_turns_out_empty_is_named_with_the_epoch():
    class Once:
        def __init__(self):
            self.batches = iter(batches(8))

        def __iter__(self):
            return self.batches

    made = trainer(Once(), max_duration="3ep")
    with pytest.raises(EngineError) as error:
        made.fit()
    assert str(error.value) == (
        "the train_dataloader gave no batches in epoch 1; "
        "it has to be an iterable that starts over for each epoch, as a DataLoader or a list does"
    )


X = {"x": rows(8)[0]}
NO_PAIRS = [(rows(8)[0], "a Tensor"), (X, "a dict"), ((rows(8)[0],), "a tuple of length 1"), ([X, X], "2 samples")]


@pytest.mark.parametrize(("batch", "what"), NO_PAIRS, ids=[what for _, what in NO_PAIRS])
def test_a_batch_that_a_loss_function_cannot_take_is_refused(batch, what):
    made = trainer([batch], eval_dataloader=[batch], batches=Batches(samples=isinstance(batch, list)))
    for run in (made.fit, made.eval):
        with pytest.raises((ArgumentError, ArgumentTypeError), match=rf"{what}.*own loss\(outputs, batch\)") as error:
            run()
        assert str(error.value).startswith("with loss_fn a batch has to be (inputs, targets), ")


def test_an_error_at_init_closes_what_has_been_opened():
    events = []

    class Closing(type(writing_down(events))):
        def close(self, state, logger):
            events.append("close")

        def post_close(self):
            events.append("post_close")

    def fail(state):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        trainer(callbacks=[Closing(), at("init", fail)])
    assert events == ["init", "close", "post_close"]


def test_a_closed_trainer_is_refused_also_where_it_has_nothing_to_do():
    with trainer(eval_dataloader=batches(3)) as made:
        made.fit()
    made.close()
    for run in (made.fit, made.eval):
        with pytest.raises(ClosedEngineError) as error:
            run()
        assert str(error.value) == "the trainer is closed; make a new one"


def test_without_a_loader_there_is_nothing_to_evaluate_on():
    with pytest.raises(ArgumentError, match=r"there is nothing to evaluate on: give eval_dataloader to the Trainer or"):
        trainer().eval()
