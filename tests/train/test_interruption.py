"""An interrupted trainer, and what the end of a trainer closes and frees."""

import copy
import gc
import pickle
import signal
import subprocess
import sys

import pytest

from engine_core import Callback, Engine, Logger, State
from engine_core.errors import ClosedEngineError, EngineError
from engine_core.registry import Registry

from .parts import Memory, at, batches, trainer

PROGRAM = """
import torch
from engine_core import Callback, Trainer

class Closes(Callback):
    def before_backward(self, state, logger):
        raise KeyboardInterrupt

    def close(self, state, logger):
        print("closed", flush=True)

model, data = torch.nn.Linear(4, 3), [(torch.randn(8, 4), torch.randint(3, (8,)))]
sgd, loss = torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.CrossEntropyLoss()
trainer = Trainer(model, data, max_duration="1ep", loss_fn=loss, optimizers=sgd, callbacks=Closes())
trainer.fit()
"""


@pytest.mark.full
def test_an_interrupted_trainer_that_is_left_to_the_interpreters_exit_is_closed_once():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("closed\n", -signal.SIGINT)
    assert "\nKeyboardInterrupt" in done.stderr
    assert "raised by callback Closes at BEFORE_BACKWARD" in done.stderr


class Closes(Callback):
    def __init__(self):
        self.closed = 0

    def close(self, state, logger):
        self.closed += 1


def interrupt(state):
    if state.timestamp.batch == 1:
        raise KeyboardInterrupt


def test_an_interrupted_trainer_is_closed_by_its_with_statement_once():
    closes = Closes()
    with pytest.raises(KeyboardInterrupt), trainer(callbacks=[closes, at("after_forward", interrupt)]) as made:
        made.fit()
    assert closes.closed == 1
    made.close()
    assert closes.closed == 1
    with pytest.raises(ClosedEngineError):
        made.fit()


def test_an_interrupted_trainer_that_is_still_open_continues_with_the_next_batch():
    memory, sizes, once = Memory(), [], iter([True])

    def interrupt_once(state):
        sizes.append(len(state.batch[0]))
        if state.timestamp.batch == 1 and next(once, False):
            raise KeyboardInterrupt

    made = trainer(batches(8, 7, 6), loggers=memory, callbacks=at("after_forward", interrupt_once))
    with pytest.raises(KeyboardInterrupt):
        made.fit()
    assert made.state.timestamp.batch == 1
    made.fit()
    assert sizes == [8, 7, 6]
    assert [step for step, _ in memory.values("train/loss")] == [0, 1]


def test_a_trainer_without_references_is_closed_at_once():
    """Without waiting for the garbage collector: no part of a trainer refers back to it."""
    closes = Closes()
    gc.collect()
    gc.disable()
    try:
        made = trainer(callbacks=closes, eval_dataloader=batches(3))
        made.fit()
        del made
        assert closes.closed == 1
    finally:
        gc.enable()


def test_closing_in_mid_epoch_releases_the_loader():
    """A DataLoader's worker processes live as long as its iterator."""
    alive = []

    class Loader:
        def __iter__(self):
            alive.append(True)
            try:
                yield from batches(8, 8, 8)
            finally:
                alive.pop()

    made = trainer(Loader())
    made.fit("1ba")
    assert alive == [True]
    made.close()
    assert alive == []


ARGUMENTS = {
    "checkpoint_saver": {"folder": "checkpoints"},
    "threshold_stopper": {"metric": "eval/loss", "threshold": 1.0},
    "time_limit": {"limit": "1h"},
    "run_files": {"folder": "run"},
}
OURS = ("engine-core", "engine-core-author")
OWN = [r.name for r in Registry.scan().records if r.kind == "callbacks" and r.distribution in OURS]


@pytest.mark.parametrize("name", OWN)
def test_own_callbacks_and_loggers_can_be_closed_before_any_event(name, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    callback = Registry.scan().load("callbacks", name)(**ARGUMENTS.get(name, {}))
    is_logger = hasattr(callback, "log_metrics")
    Engine(State(callbacks=[] if is_logger else [callback]), Logger([callback] if is_logger else [])).close()
    assert caplog.records == []


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_trainer_can_not_be_copied_and_the_message_says_what_can(copied):
    says = r"^Trainer can't be copied or pickled, .*state_dict\(\), .*checkpoints"
    with trainer() as made, pytest.raises(EngineError, match=says):
        copied(made)
