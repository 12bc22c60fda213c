"""A run whose logger fails: the same training, with a warning, and nothing missing from the other loggers."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from engine_core import Logger, LoggerDestination, State, Trainer
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.checkpoint.store import has_checkpoint
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


def test_the_rank_whose_destination_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"is_initialized": True, "get_rank": 1, "get_world_size": 2}.items():
        monkeypatch.setattr(dist, name, lambda value=value: value)
    with pytest.warns(DestinationWarning, match=r"^logger destination Fails failed in log_metrics.*\(rank 1\)$"):
        Logger([Fails()]).log_metrics({"loss": 0.0}, 2)


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
    assert ["continues without it: disabled after" in message for message in messages] == [False] * 4 + [True]
    assert {warning.filename for warning in recwarn} == {__file__}


def test_settings_that_it_cannot_take_do_not_keep_the_run_from_starting(recwarn: pytest.WarningsRecorder) -> None:
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
def test_a_disk_that_is_full_is_reported_once_and_at_the_end_and_does_not_stop_the_run(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    memory = Memory()
    files = RunFiles(tmp_path)
    made = trained(files, memory)
    assert (made.state.timestamp.batch, len(memory.metrics)) == (6, 8)
    assert files.latest == {name: value for _, values in memory.metrics for name, value in values.items()}
    full = f"logger destination RunFiles can't write in {str(tmp_path)!r}"
    assert [str(w.message).partition(";")[0].partition(":")[0] for w in recwarn] == [
        f"{full} ([Errno 28] No space left on device)",
        f"{full} at its end ([Errno 28] No space left on device)",
    ]
    assert str(recwarn.list[-1].message).endswith(": 8 lines for metrics.jsonl and the table metrics.csv are lost")


def test_a_state_that_cannot_be_had_is_left_out_of_the_checkpoint(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    class Stateless(LoggerDestination):
        def state_dict(self) -> dict[str, Any]:
            raise ConnectionError("no route")

    saver = CheckpointSaver(tmp_path, "1ba")
    with trainer(batches(8, 8), linear(), loggers=[Stateless(), Memory()], callbacks=saver) as made:
        made.fit()
    assert has_checkpoint(tmp_path)
    messages = [str(warning.message).partition(": ")[0] for warning in recwarn]
    assert messages[0] == "logger destination Stateless failed in state_dict at batch 1 (epoch 0)"


@pytest.mark.filterwarnings("ignore::engine_core.errors.CheckpointWarning")
def test_without_the_state_of_a_callback_there_is_no_checkpoint_though_it_is_a_destination_too(tmp_path: Path) -> None:
    class Both(LoggerDestination):
        def state_dict(self) -> dict[str, Any]:
            raise ConnectionError("no route")

    both, saver = Both(), CheckpointSaver(tmp_path, "1ba")
    with trainer(batches(8, 8), linear(), loggers=both, callbacks=[saver, both]) as made:
        made.fit()
    assert not has_checkpoint(tmp_path)


def test_one_that_cannot_start_over_is_named(tmp_path: Path) -> None:
    class Stuck(LoggerDestination):
        def start_over(self) -> None:
            raise ConnectionError("no route")

    saver = CheckpointSaver(tmp_path, "1ba")
    with pytest.raises(ConnectionError) as failure:
        trainer(batches(8), linear(), loggers=Stuck(), callbacks=saver, autoresume=True)
    assert failure.value.__notes__ == ["raised by start_over of callback Stuck"]
