"""When the saver saves, what it keeps, and what it does when it can't."""

import errno
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from engine_core import Engine, Logger, State
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.checkpoint import read_content, resolve, write_content
from engine_core.errors import CheckpointError, CheckpointWarning, EngineError

from .parts import at, batches, rows, trainer

WRITE = "engine_core.checkpoint.store.write_content"


def saved(folder: Path) -> list[str]:
    return sorted((path.name for path in folder.glob("ep*")), key=lambda name: int(name.partition("ba")[2]))


def fitted(folder: Path, *sizes: int, max_duration: str = "2ep", metrics: Any = (), **settings: Any) -> list[str]:
    """Train on these batches and return what is saved."""
    values = iter(metrics)
    callbacks = [CheckpointSaver(folder, **settings)]
    if metrics:
        callbacks.insert(0, at("epoch_checkpoint", lambda state: state.metrics.update({"eval/accuracy": next(values)})))
    with trainer(batches(*sizes), max_duration=max_duration, callbacks=callbacks) as made:
        made.fit()
    return saved(folder)


@pytest.mark.parametrize(
    ("interval", "names"),
    [
        ("1ep", ["ep1-ba3", "ep2-ba6"]),
        ("2ba", ["ep0-ba2", "ep1-ba4", "ep1-ba6", "ep2-ba6"]),
        ("5ba", ["ep1-ba5", "ep2-ba6"]),
        ("16sp", ["ep0-ba2", "ep1-ba4", "ep1-ba6", "ep2-ba6"]),
        ("1h", ["ep2-ba6"]),
    ],
)
def test_it_saves_when_an_interval_has_passed_and_at_the_end(interval: str, names: list[str], tmp_path: Path) -> None:
    assert sorted(fitted(tmp_path, 8, 8, 8, interval=interval, keep_last=None)) == sorted(names)
    assert resolve(tmp_path).name == "ep2-ba6"


def test_evaluation_results_are_in_it(tmp_path: Path) -> None:
    with trainer(callbacks=CheckpointSaver(tmp_path), eval_dataloader=[rows(4)]) as made:
        made.fit()
        assert read_content(resolve(tmp_path)).state["metrics"] == made.state.metrics != {}


def test_the_last_ones_stay_and_what_the_end_has_added(tmp_path: Path) -> None:
    names = fitted(tmp_path, 4, 4, 4, 4, 4, interval="2ba", keep_last=1, max_duration="1ep")
    assert sorted(names) == ["ep0-ba4", "ep1-ba5"]


@pytest.mark.parametrize(
    ("metric", "names"),
    [
        ("eval/accuracy", ["ep2-ba2", "ep4-ba4"]),
        ("max:eval/accuracy", ["ep2-ba2", "ep4-ba4"]),
        ("min:eval/accuracy", ["ep1-ba1", "ep4-ba4"]),
    ],
)
def test_the_best_ones_stay(metric: str, names: list[str], tmp_path: Path) -> None:
    found = fitted(
        tmp_path, 8, max_duration="4ep", metrics=[0.1, 0.9, 0.5, 0.6], keep_last=1, keep_best=1, metric=metric
    )
    assert found == names


def test_a_smaller_loss_is_better(tmp_path: Path) -> None:
    values = iter([0.1, 0.9, 0.5])
    setting = at("epoch_checkpoint", lambda state: state.metrics.update({"eval/loss": next(values)}))
    saver = CheckpointSaver(tmp_path, keep_last=1, keep_best=1, metric="eval/loss")
    with trainer(batches(8), max_duration="3ep", callbacks=[setting, saver]) as made:
        made.fit()
    assert saved(tmp_path) == ["ep1-ba1", "ep3-ba3"]
    assert saver.state_dict()["best"] == [[0.1, "ep1-ba1"]]


def test_best_ones_that_were_ranked_the_other_way_round_are_ranked_anew(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"keep_last": 1, "keep_best": 2}
    fitted(tmp_path, 8, metrics=[0.5, 0.9], metric="max:eval/accuracy", **settings)
    assert (tmp_path / "best").read_text() == "ep2-ba2\n"
    saver = CheckpointSaver(tmp_path, metric="min:eval/accuracy", **settings)
    with trainer(batches(8), max_duration="3ep", callbacks=saver, autoresume=True) as made:
        made.fit()
    assert (tmp_path / "best").read_text() == "ep1-ba1\n"


def test_a_metric_that_is_never_measured_is_reported_as_missing(tmp_path: Path) -> None:
    saver = CheckpointSaver(tmp_path, keep_best=1, metric="max:eval/acuracy")
    made = trainer(callbacks=saver, eval_dataloader=[rows(4)], metrics={"accuracy": Half()})
    with (
        pytest.warns(
            CheckpointWarning, match="no evaluation has a result 'eval/acuracy'.*did you mean 'eval/accuracy'"
        ),
        made,
    ):
        made.fit()


class Half:
    def update(self, outputs: Any, targets: Any) -> None:
        """Take nothing."""

    def compute(self) -> float:
        return 0.5

    def reset(self) -> None:
        """Keep nothing."""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"interval": "0ba"}, "interval"),
        ({"interval": "soon"}, "interval='soon'|'soon' is not a length"),
        ({"keep_last": 0}, "keep_last=0 has to be within"),
        ({"keep_last": True}, "keep_last=True"),
        ({"keep_best": 1}, "belong together"),
        ({"metric": "eval/loss"}, "belong together"),
        ({"on_error": "ignore"}, "on_error='ignore' has to be 'warn' or 'stop'"),
    ],
)
def test_arguments_are_checked_when_they_are_given(arguments: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        CheckpointSaver(tmp_path, **arguments)


def test_nothing_is_written_before_the_first_fit(tmp_path: Path) -> None:
    trainer(callbacks=CheckpointSaver(tmp_path / "new")).close()
    assert not (tmp_path / "new").exists()


def test_a_folder_with_another_run_is_refused(tmp_path: Path) -> None:
    fitted(tmp_path, 8)
    made = trainer(callbacks=CheckpointSaver(tmp_path))
    with (
        pytest.raises(CheckpointError, match=r"holds checkpoints of another run, such as ep2-ba2: .*autoresume=True"),
        made,
    ):
        made.fit()
    assert saved(tmp_path) == ["ep1-ba1", "ep2-ba2"]


def test_two_live_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    with trainer(callbacks=CheckpointSaver(tmp_path, "1ba")) as first:
        first.fit("1ba")
        with trainer(callbacks=CheckpointSaver(tmp_path)) as second, pytest.raises(CheckpointError, match="is in use"):
            second.fit()


def test_a_loop_without_snapshots_cannot_be_saved(tmp_path: Path) -> None:
    state = State(callbacks=[CheckpointSaver(tmp_path)])
    with Engine(state, Logger()) as engine, pytest.raises(EngineError, match=r"needs state\.loop\.snapshot"):
        engine.run_event("fit_start")


def test_it_warns_at_the_start_about_a_loader_that_is_not_resumed_exactly(tmp_path: Path) -> None:
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*rows(8)), batch_sampler=[[0, 1], [2, 3]])
    made = trainer(loader, callbacks=CheckpointSaver(tmp_path))
    with (
        pytest.warns(
            CheckpointWarning, match="can't be resumed exactly in the middle of an epoch: its sampler, a list"
        ),
        made,
    ):
        made.fit()


def test_a_run_that_is_paused_is_saved(tmp_path: Path) -> None:
    pausing = at("batch_end", lambda state: state.pause_training() if state.timestamp.batch == 2 else None)
    told: list[int] = []
    saver = CheckpointSaver(tmp_path, "1h")
    asking = at("batch_checkpoint", lambda state: told.append(len(saver.written())))
    with trainer(batches(8, 8, 8), callbacks=[pausing, saver, asking]) as made:
        made.fit()
    assert told == [0, 1]
    assert saved(tmp_path) == ["ep0-ba2"]


def test_what_is_written_is_reported_after_the_write_in_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[list[str]] = []
    saver = CheckpointSaver(tmp_path, "1ba", keep_last=2)

    def late(folder: Path, content: Any, *_: Any) -> None:
        time.sleep(0.05)
        write_content(folder, content)

    monkeypatch.setattr(WRITE, late)
    asking = at("batch_checkpoint", lambda state: told.append([path.name for path in saver.written()]))
    with trainer(batches(8, 8, 8), callbacks=[saver, asking]) as made:
        made.fit()
    assert told == [["ep0-ba1"], ["ep0-ba1", "ep0-ba2"], ["ep0-ba2", "ep0-ba3"]]


def test_asking_what_is_written_reports_a_failure_as_the_saver_is_set_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WRITE, full)
    saver = CheckpointSaver(tmp_path, "1ba", on_error="stop")
    made = trainer(batches(8, 8, 8), callbacks=[saver, at("batch_checkpoint", lambda state: saver.written())])
    with pytest.raises(CheckpointError, match="No space left"), made:
        made.fit()
    assert made.state.timestamp.batch == 1


def test_without_its_folder_nothing_is_written_though_another_run_has_saved_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted(tmp_path, 8)
    monkeypatch.setattr("engine_core.checkpoint.store.Store.lock", full)
    saver = CheckpointSaver(tmp_path)
    with trainer(callbacks=saver) as made, pytest.warns(CheckpointWarning, match="No space left"):
        made.fit()
    assert saver.written() == []


def full(*args: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_disk_that_is_full_does_not_stop_training_and_warns_once_with_a_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with trainer(batches(8, 8, 8, 8, 8), callbacks=CheckpointSaver(tmp_path, "1ba")) as made:
        made.fit("1ba")
        monkeypatch.setattr(WRITE, full)
        with pytest.warns(CheckpointWarning) as told:
            made.fit()
        assert made.state.timestamp.batch == 5
    assert resolve(tmp_path).name == "ep0-ba1"
    first, count = (str(warning.message) for warning in told)
    assert re.search(r"no checkpoint was written .*No space left.*; training continues", first)
    assert re.fullmatch(rf"\d checkpoints could not be written in '{tmp_path}'", count)


def test_a_full_disk_stops_training_if_on_error_is_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WRITE, full)
    made = trainer(batches(8, 8, 8), callbacks=CheckpointSaver(tmp_path, "1ba", on_error="stop"))
    with pytest.raises(CheckpointError, match=r"no checkpoint was written .*No space left"), made:
        made.fit()
    assert made.state.timestamp.batch < 3


def test_two_checkpoints_are_never_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writing, most = [0], [0]
    lock = threading.Lock()

    def slow(folder: Path, content: Any, *_: Any) -> None:
        with lock:
            writing[0] += 1
            most[0] = max(most[0], writing[0])
        time.sleep(0.02)
        folder.mkdir(parents=True)
        (folder / "manifest.json").touch()
        with lock:
            writing[0] -= 1

    monkeypatch.setattr(WRITE, slow)
    fitted(tmp_path, 4, 4, 4, interval="1ba")
    assert most == [1]


def test_training_continues_while_the_run_is_written_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The write waits until training has moved on; if training waited for it, that would never happen."""
    further, weights = threading.Event(), dict[int, Any]()

    def late(folder: Path, content: Any, *_: Any) -> None:
        assert further.wait(20)
        write_content(folder, content)

    def look(state: State) -> None:
        weights[state.timestamp.batch] = state.model.weight.detach().clone()  # type: ignore[union-attr, operator]
        if state.timestamp.batch == 3:
            further.set()

    monkeypatch.setattr(WRITE, late)
    with trainer(batches(8, 8, 8), callbacks=[CheckpointSaver(tmp_path, "2ba"), at("batch_end", look)]) as made:
        made.fit()
    assert torch.equal(read_content(tmp_path / "ep0-ba2").model["weight"], weights[2])
    assert not torch.equal(weights[2], weights[3])
