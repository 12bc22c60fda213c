"""A run whose logger fails: the same training, told, and the other loggers complete."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from engine_core import Logger, LoggerDestination, State, Trainer
from engine_core.errors import DestinationWarning
from engine_core.loggers.run_files import RunFiles

from .parts import Memory, batches, linear, same, trainer


class Fails(LoggerDestination):
    """Raises in everything from batch 2 on."""

    closed = 0

    def log_metrics(self, metrics: Mapping[str, Any], step: int) -> None:
        if step >= 2:
            raise ConnectionError(f"no route at {step}")

    def batch_end(self, state: State, logger: Logger) -> None:
        self.log_metrics({}, state.timestamp.batch)

    def close(self, state: State, logger: Logger) -> None:
        self.closed += 1


def trained(*loggers: LoggerDestination) -> Trainer:
    with trainer(batches(8, 5, 8, 8, 8, 8), linear(), eval_dataloader=batches(4), loggers=loggers) as made:
        made.fit()
    return made


def test_training_is_that_of_a_run_without_it(recwarn: pytest.WarningsRecorder) -> None:
    alone, beside, fails = Memory(), Memory(), Fails()
    expected, made = trained(alone), trained(fails, beside)
    assert same(made.state.model.state_dict(), expected.state.model.state_dict())  # type: ignore[union-attr]
    assert (beside.metrics, fails.closed) == (alone.metrics, 1)
    messages = [str(warning.message) for warning in recwarn]
    assert [m.partition(" (at ")[0].partition("destination ")[2] for m in messages] == [
        "Fails failed in batch_end at batch 2 (epoch 0): ConnectionError: no route at 2",
        "Fails failed in log_metrics at batch 2 (epoch 0): ConnectionError: no route at 2",
        "Fails failed in batch_end at batch 3 (epoch 0): ConnectionError: no route at 3",
        "Fails failed in log_metrics at batch 3 (epoch 0): ConnectionError: no route at 3",
        "Fails failed in batch_end at batch 4 (epoch 0): ConnectionError: no route at 4",
    ]
    assert ["it is disabled, and gets" in message for message in messages] == [False] * 4 + [True]
    assert {warning.filename for warning in recwarn} == {__file__}


def test_settings_that_it_can_not_take_do_not_keep_the_run_from_beginning(recwarn: pytest.WarningsRecorder) -> None:
    class Picky(LoggerDestination):
        def log_hyperparameters(self, hyperparameters: Mapping[str, Any]) -> None:
            raise TypeError("what is a seed?")

    assert trained(Picky()).state.timestamp.batch == 6
    assert "Picky failed in log_hyperparameters at batch 0" in str(recwarn.pop(DestinationWarning).message)


@pytest.mark.filterwarnings("error::engine_core.errors.DestinationWarning")
def test_a_strict_run_ends_there_and_everything_is_closed() -> None:
    fails, made = Fails(), []
    with (
        pytest.raises(DestinationWarning, match="Fails failed in batch_end at batch 2"),
        trainer(batches(8, 8, 8, 8), linear(), loggers=fails) as run,
    ):
        made.append(run)
        run.fit()
    assert (made[0].state.timestamp.batch, fails.closed) == (2, 1)


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is a device of Linux")
def test_a_disk_that_is_full_ends_the_files_and_not_the_run(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    memory = Memory()
    made = trained(RunFiles(tmp_path), memory)
    assert (made.state.timestamp.batch, len(memory.metrics)) == (6, 7)
    assert [("OSError: [Errno 28] No space left on device" in str(w.message)) for w in recwarn] == [True] * 3
