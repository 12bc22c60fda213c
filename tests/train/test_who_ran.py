"""What the model, the loss or the backward pass raises gets one note: which algorithms ran in that batch before it."""

import pytest
import torch
from torch import nn

from engine_core import Algorithm, Engine, Logger, State

from .parts import acting, at, linear, rows, trainer


def nothing(event, state):
    """Change nothing."""


def widen(event, state):
    state.batch_set_item(0, torch.cat([state.batch[0]] * 2, 1))


def out_of_range(event, state):
    state.batch_set_item(1, state.batch[1] + 3)


def detach(event, state):
    state.loss = state.loss.detach()


def notes_of(raised):
    return getattr(raised.value, "__notes__", [])


def failing(made, run=None, error=(RuntimeError, IndexError, ValueError)):
    with made, pytest.raises(error) as raised:
        (run or made.fit)()
    return raised


def notes(*algorithms, **settings):
    return notes_of(failing(trainer(algorithms=list(algorithms), **settings)))


@pytest.mark.parametrize(
    ("algorithm", "who"),
    [
        (acting(widen, "after_dataloader", writes=("batch",)), "Faulty at AFTER_DATALOADER (writes batch)"),
        (acting(widen, "before_forward", writes=None), "Faulty at BEFORE_FORWARD (declares no writes)"),
        (acting(out_of_range, "batch_start", writes=("batch", "loss")), "Faulty at BATCH_START (writes batch, loss)"),
        (acting(detach, "after_loss", writes=()), "Faulty at AFTER_LOSS (writes nothing)"),
        (acting(detach, "before_backward", writes=("loss",)), "Faulty at BEFORE_BACKWARD (writes loss)"),
    ],
)  # fmt: skip
def test_a_failure_in_forward_loss_or_backward_names_the_algorithm_that_ran(algorithm, who):
    assert notes(algorithm) == [f"in this batch ran: {who}"]


def test_if_none_ran_there_is_no_note():
    class Failing(nn.Linear):
        def forward(self, inputs):
            raise RuntimeError("no")

    others = acting(nothing, "fit_start", "epoch_start", "batch_end", "batch_checkpoint")
    assert notes(model=Failing(4, 3)) == notes(others, model=Failing(4, 3)) == []


def test_all_that_ran_in_this_batch_are_named_in_order_with_their_unique_names():
    first = acting(nothing, "before_dataloader", "before_forward", name="First", writes=("batch",))
    second = acting(nothing, "after_dataloader", name="Second", writes=("batch",))
    third = acting(nothing, "after_dataloader", name="Second", match=lambda event, state: state.timestamp.batch == 0)
    bad = acting(detach, "after_loss", match=lambda event, state: state.timestamp.batch == 1)
    (note,) = notes(first, second, third, bad)
    assert note == (
        "in this batch ran: First at BEFORE_DATALOADER (writes batch), Second at AFTER_DATALOADER (writes batch), "
        "First at BEFORE_FORWARD (writes batch), Faulty at AFTER_LOSS (writes nothing)"
    )


def test_what_an_algorithm_or_a_callback_raises_keeps_its_own_note():
    def fail(*_):
        raise RuntimeError("lost")

    before = acting(nothing, "after_dataloader", name="Before")
    for made in (trainer(algorithms=[before, acting(fail, "before_loss")]), trainer(callbacks=at("before_loss", fail))):
        (note,) = notes_of(failing(made))
        assert note.startswith("raised by")


def test_microbatches_show_the_last_ones():
    seen = []

    class FailsLater(nn.Linear):
        def forward(self, inputs):
            seen.append(len(inputs))
            if len(seen) == 2:
                raise RuntimeError("no")
            return super().forward(inputs)

    around = acting(nothing, "before_forward", "after_forward")
    assert notes(around, model=FailsLater(4, 3), microbatch_size=4) == [
        "in microbatch 2 of 2 (rows 4 to 7 of 8)",
        "in this batch ran: Faulty at BEFORE_FORWARD (writes nothing), Faulty at AFTER_FORWARD (writes nothing)",
    ]


@pytest.mark.parametrize("by", ["fit", "eval"])
def test_an_evaluation_names_those_of_its_batch(by):
    events = {"writes": ("batch",), "match": lambda event, state: event == "eval_before_forward"}
    in_evaluation = acting(widen, "eval_batch_start", "eval_before_forward", **events)
    in_training = acting(nothing, "after_dataloader", name="Training")
    made = trainer(algorithms=[in_training, in_evaluation], eval_dataloader=[rows(4)])
    (note,) = notes_of(failing(made, getattr(made, by)))
    assert note == "in this batch ran: Faulty at EVAL_BEFORE_FORWARD (writes batch)"


class Early(Algorithm):
    """Runs at two events, at the second only once."""

    done = False

    def match(self, event, state):
        return event == "after_dataloader" or (event == "after_loss" and not self.done)

    def apply(self, event, state, logger):
        self.done = event == "after_loss"


def test_a_loop_of_ones_own_gets_it_within_restoring_and_nowhere_else():
    with Engine(State(model=linear(), algorithms=[Early()]), Logger()) as engine:
        for step in range(3):
            engine.run_event("batch_start")
            with pytest.raises(OSError, match="no") as raised, engine.restoring():
                engine.run_event("after_dataloader")
                if step < 2:
                    engine.run_event("after_loss")
                raise OSError("no")
    assert notes_of(raised) == ["in this batch ran: Early at AFTER_DATALOADER (declares no writes)"]
    with pytest.raises(OSError, match="no") as raised, Engine(State(algorithms=[Early()]), Logger()) as engine:
        engine.run_event("after_dataloader")
        raise OSError("no")
    assert notes_of(raised) == []
