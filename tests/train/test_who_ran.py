"""What the model, the loss or the backward pass raises gets one note: which algorithms ran in that batch before it."""

import pytest
import torch
from torch import nn

from engine_core import Algorithm, Engine, Logger, State
from engine_core.errors import OutOfMemoryError

from .parts import acting, at, batches, linear, rows, trainer


def nothing(event, state):
    """Change nothing."""


def halve(event, state):
    state.batch = tuple(item[:4] for item in state.batch)


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


def test_the_loss_of_the_loop_is_a_failure_too():
    keep = acting(lambda event, state: setattr(state, "loss", torch.ones(2)), "after_loss", writes=("loss",))
    assert notes(keep) == ["in this batch ran: Faulty at AFTER_LOSS (writes loss)"]


def test_all_that_ran_are_named_in_order_with_their_unique_names():
    first = acting(nothing, "before_dataloader", "before_forward", name="First", writes=("batch",))
    second = acting(halve, "after_dataloader", name="Halve", writes=("batch",))
    third = acting(nothing, "after_dataloader", name="Halve", match=lambda event, state: state.timestamp.batch == 0)
    bad = acting(detach, "after_loss", match=lambda event, state: state.timestamp.batch == 1)
    (note,) = notes(first, second, third, bad)
    assert note == (
        "in this batch ran: First at BEFORE_DATALOADER (writes batch), Halve at AFTER_DATALOADER (writes batch), "
        "First at BEFORE_FORWARD (writes batch), Faulty at AFTER_LOSS (writes nothing)"
    )


def test_if_none_ran_there_is_no_note():
    class Failing(nn.Linear):
        def forward(self, inputs):
            raise RuntimeError("no")

    others = acting(nothing, "fit_start", "epoch_start", "batch_end", "batch_checkpoint")
    assert notes(model=Failing(4, 3)) == notes(others, model=Failing(4, 3)) == []


def test_what_ran_only_in_an_earlier_batch_is_not_named():
    early = acting(nothing, "after_forward", "after_dataloader", match=lambda event, state: state.timestamp.batch == 0)
    bad = acting(widen, "before_forward", name="Bad", match=lambda event, state: state.timestamp.batch == 1)
    assert notes(early, bad) == ["in this batch ran: Bad at BEFORE_FORWARD (writes nothing)"]


@pytest.mark.parametrize("kind", ["algorithm", "callback"])
def test_what_an_algorithm_or_a_callback_raises_keeps_its_own_note(kind):
    def fail(*_):
        raise RuntimeError("lost")

    fails = {"algorithms": [acting(nothing, "after_dataloader", name="Before")]}
    if kind == "algorithm":
        fails["algorithms"].append(acting(fail, "before_loss"))
    else:
        fails["callbacks"] = at("before_loss", fail)
    (note,) = notes_of(failing(trainer(**fails)))
    assert note.startswith("raised by")


def test_ctrl_c_gets_no_note():
    class Interrupted(nn.Linear):
        def forward(self, inputs):
            raise KeyboardInterrupt

    made = trainer(algorithms=acting(nothing, "after_dataloader"), model=Interrupted(4, 3))
    assert notes_of(failing(made, error=KeyboardInterrupt)) == []


def test_the_optimizer_is_not_the_model():
    def fail(closure=None):
        raise RuntimeError("no step")

    made = trainer(algorithms=acting(nothing, "after_dataloader"))
    made.state.optimizers[0].step = fail
    assert notes_of(failing(made)) == []


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


def test_of_more_than_ten_the_last_ten_are_named():
    many = [acting(nothing, "after_dataloader", name=f"A{n}") for n in range(12)]
    (note,) = notes(*many, acting(detach, "after_loss"))
    head, _, named = note.partition(": ")
    assert head == "in this batch ran (the last 10 of 13)"
    assert [name.split()[0] for name in named.split(", ")] == [*(f"A{n}" for n in range(8, -1, -1)), "Faulty"]


def test_a_lack_of_memory_has_the_note_too():
    class Hungry(nn.Linear):
        def forward(self, inputs):
            raise MemoryError

    made = trainer(algorithms=acting(nothing, "after_dataloader"), model=Hungry(4, 3))
    assert notes_of(failing(made, error=OutOfMemoryError)) == [
        "in this batch ran: Faulty at AFTER_DATALOADER (writes nothing)"
    ]


@pytest.mark.parametrize("by", ["fit", "eval"])
def test_an_evaluation_names_those_of_its_batch(by):
    in_training = acting(nothing, "after_dataloader", name="Training")
    in_evaluation = acting(widen, "eval_batch_start", "eval_before_forward", writes=("batch",))
    made = trainer(algorithms=[in_training, in_evaluation], eval_dataloader=[rows(4)])
    made.state.algorithms[1].match = lambda event, state: event == "eval_before_forward"
    assert notes_of(failing(made, getattr(made, by))) == [
        "in this batch ran: Faulty at EVAL_BEFORE_FORWARD (writes batch)"
    ]


def test_what_ran_only_in_an_earlier_batch_of_an_evaluation_is_not_named():
    early = acting(nothing, "eval_batch_start", match=lambda event, state: state.eval_timestamp.batch == 0)
    made = trainer(algorithms=early, eval_dataloader=[rows(4), (torch.zeros(4, 5), torch.zeros(4))])
    assert notes_of(failing(made, made.eval)) == []


def test_a_closure_that_fails_names_those_that_ran_before_it():
    def again(event, state):
        state.model.forward = lambda inputs: inputs.no_such_attribute
        state.loop.closure()

    made = trainer(algorithms=[acting(nothing, "before_train_batch"), acting(again, "after_train_batch", name="Again")])
    assert notes_of(failing(made, error=AttributeError)) == [
        "in this batch ran: Faulty at BEFORE_TRAIN_BATCH (writes nothing)",
        "raised by apply of algorithm Again at AFTER_TRAIN_BATCH",
    ]


class Early(Algorithm):
    """Runs at two events, at the second only once."""

    done = False

    def match(self, event, state):
        return event == "after_dataloader" or (event == "after_loss" and not self.done)

    def apply(self, event, state, logger):
        self.done = event == "after_loss"


@pytest.mark.parametrize("clock", [True, False])
@pytest.mark.parametrize("around", ["step", "loop"])
def test_a_loop_of_ones_own_gets_it_within_restoring(clock, around):
    def steps(engine, restoring):
        for step in range(3):
            with restoring():
                engine.run_event("after_dataloader")
                if step == 2:
                    raise OSError("no")
                engine.run_event("after_loss")
                if clock:
                    engine.state.timestamp = engine.state.timestamp.to_next_batch()

    with (
        Engine(State(model=linear(), algorithms=[Early()]), Logger()) as engine,
        pytest.raises(OSError, match="no") as raised,
    ):
        if around == "step":
            steps(engine, engine.restoring)
        else:
            with engine.restoring():
                steps(engine, torch.enable_grad)
    named = "in this batch ran: Early at AFTER_DATALOADER (declares no writes)"
    stale = "" if clock or around == "step" else ", Early at AFTER_LOSS (declares no writes)"
    assert notes_of(raised) == [named + stale]


def test_outside_of_restoring_there_is_none():
    with pytest.raises(OSError, match="no") as raised, Engine(State(algorithms=[Early()]), Logger()) as engine:
        engine.run_event("after_dataloader")
        raise OSError("no")
    assert notes_of(raised) == []


def test_batches_that_an_algorithm_halved_are_told_from_those_of_the_loader():
    class Picky(nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs.reshape(8, 4))

    halving = acting(halve, "after_dataloader", writes=("batch",), name="Halve")
    assert notes(halving, model=Picky(4, 3)) == ["in this batch ran: Halve at AFTER_DATALOADER (writes batch)"]
    assert notes(data=batches(4), model=Picky(4, 3)) == []
