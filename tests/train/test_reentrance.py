"""What calls the trainer from inside its own events, or between two of its fits, gets a clear answer."""

import pytest
import torch
from torch import nn

from engine_core import Callback, State
from engine_core.errors import ArgumentError, CheckpointError, EngineError
from engine_core.loop.status import RunStatus

from .parts import at, batches, rows, trainer


class FitsAgain(Callback):
    """Calls `fit` at each forward pass and evaluation, and keeps what a refusal could have changed."""

    def __init__(self):
        self.seen = []

    def after_forward(self, state, logger, says=r"fit is running: fit\(\) can't be called from its events"):
        before = self.now()
        with pytest.raises(EngineError, match=says):
            self.trainer.fit("5ep")
        self.seen.append((before, self.now()))

    def eval_start(self, state, logger):
        self.after_forward(state, logger, "an evaluation is running: fit")

    def now(self):
        state, counted_s = self.trainer.state, self.trainer._session.seam.counted_s
        return state.max_duration, state.model.training, torch.get_rng_state().tolist(), counted_s, state.loop.closure


def test_a_refused_fit_changes_nothing():
    callback = FitsAgain()
    callback.trainer = trainer(callbacks=[callback], eval_dataloader=batches(8))
    callback.trainer.fit()
    assert len(callback.seen) == 3
    assert [before for before, _ in callback.seen] == [after for _, after in callback.seen]


@pytest.mark.parametrize(
    ("call", "event", "what"),
    [
        ("fit", "batch_end", "fit"),
        ("predict", "batch_end", "fit"),
        ("eval", "eval_batch_end", "an evaluation"),
        ("predict", "eval_batch_end", "an evaluation"),
    ],
)
def test_what_can_not_run_inside_another_is_refused_and_the_outer_one_can_continue(call, event, what):
    given = {"fit": ("1ba",), "eval": (), "predict": (batches(3),)}[call]
    callback = at(event, lambda state: getattr(made, call)(*given))
    made = trainer(eval_dataloader=batches(3), eval_interval="1ba", callbacks=callback)
    with pytest.raises(EngineError, match=rf"^{what} is running: {call}\(\) can't be called from its events; call it"):
        made.fit()
    made.state.callbacks.clear()
    made.fit()
    assert (made.state.timestamp.batch, list(made.state.metrics)) == (2, ["eval/loss"])


def test_a_loader_that_is_replaced_when_the_epoch_starts_is_the_one_that_counts():
    replace = at("epoch_start", lambda state: setattr(state, "train_dataloader", batches(*[8] * 5)))
    made = trainer(batches(8, 8), max_duration="2ba", callbacks=replace)
    made.fit()
    assert (made.state.dataloader_len, made.state.timestamp.epoch, made.state.timestamp.batch_in_epoch) == (5, 0, 2)


def test_a_loss_module_as_an_attribute_of_the_model_is_not_its_own_loss():
    class Net(nn.Linear):
        def __init__(self):
            super().__init__(4, 3)
            self.loss = nn.CrossEntropyLoss()

    with pytest.raises(ArgumentError, match=r"Net\.loss is a module, .*: give Trainer\(loss_fn=model\.loss"):
        trainer(model=Net(), loss_fn=None).fit()


class Failing:
    """A loader made of a generator that fails once."""

    failures = 1

    def __iter__(self):
        yield rows(8)
        if self.failures:
            self.failures -= 1
            raise OSError("disk")
        yield rows(8)


def test_a_generator_that_raised_does_not_pass_for_exhausted():
    made = trainer(Failing(), max_duration="3ba")
    with pytest.raises(OSError, match="disk"):
        made.fit()
    assert (made.state.timestamp.epoch, made.state.timestamp.batch) == (0, 1)
    made.fit()
    assert (made.state.timestamp.epoch, made.state.timestamp.batch) == (0, 3)


def test_a_checkpoint_that_awaits_what_is_never_saved_is_refused():
    status = RunStatus(State())
    with pytest.raises(CheckpointError, match="the checkpoint awaits 'fit_end', at which nothing is saved"):
        status.load_state_dict({**status.state_dict(), "awaited": "fit_end"})
