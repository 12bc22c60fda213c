"""What the saver does when a write fails, when its folder is not available, and which results count as the best."""

import errno
import math
import shutil
import signal

import pytest

from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.checkpoint import read_content, resolve, write_content
from engine_core.errors import ArgumentError, CheckpointError, CheckpointWarning

from .parts import at, batches, net, rows, trainer

WRITE = "engine_core.checkpoint.store.write_content"


class Accuracy:
    """Gives these values, one at each evaluation."""

    def __init__(self, values):
        self._values, self._value = values, None

    def update(self, outputs, targets):
        """Take nothing."""

    def compute(self):
        if self._value is None:
            self._value = next(self._values)
        return self._value

    def reset(self):
        self._value = None


def best_of(saver, values, *callbacks, **settings):
    """Train on epochs of four batches with these accuracies, and return which checkpoints are the best."""
    measured = {"eval_dataloader": [rows(4)], "metrics": {"accuracy": Accuracy(iter(values))}, "max_duration": "3ep"}
    with trainer(batches(4, 4, 4, 4), callbacks=[*callbacks, saver], **{**measured, **settings}) as made:
        made.fit()
    return saver.state_dict()["best"]


def best_saver(folder, interval="1ep", keep_best=1):
    return CheckpointSaver(folder, interval, keep_last=1, keep_best=keep_best, metric="eval/accuracy")


def failing_once(name):
    """Return a `write_content` that fails the first time that a checkpoint of this name is written."""
    failures = iter([True])

    def write(folder, content, *_):
        if folder.name == name and next(failures, False):
            raise OSError(errno.ENOSPC, "No space left on device")
        write_content(folder, content)

    return write


def test_what_could_not_be_written_and_what_is_not_finite_is_not_among_the_best(tmp_path, monkeypatch):
    assert best_of(best_saver(tmp_path / "finite"), [math.nan, math.inf, 0.1]) == [[0.1, "ep3-ba12"]]
    monkeypatch.setattr(WRITE, failing_once("ep2-ba8"))
    with pytest.warns(CheckpointWarning, match="No space left"):
        best = best_of(best_saver(tmp_path), [0.5, 0.9, 0.1])
    assert best == [[0.5, "ep1-ba4"]]
    assert (tmp_path / "ep1-ba4").is_dir()


def test_a_best_checkpoint_that_was_removed_no_longer_counts(tmp_path):
    saver = best_saver(tmp_path)

    def remove(state):
        if state.timestamp.epoch == 1:
            assert saver.written()  # it waits for the write in progress
            shutil.rmtree(tmp_path / "ep1-ba4")

    assert best_of(saver, [0.9, 0.1, 0.2], at("epoch_start", remove)) == [[0.2, "ep3-ba12"]]


def test_the_end_is_saved_again_if_it_could_not_be(tmp_path, monkeypatch):
    monkeypatch.setattr(WRITE, failing_once("ep0-ba3"))
    made = trainer(batches(4, 4, 4, 4), callbacks=CheckpointSaver(tmp_path, "1ba"), max_duration="3ba")
    with pytest.warns(CheckpointWarning, match="No space left"), made:
        made.fit()
    assert resolve(tmp_path).name == "ep0-ba3"


def test_a_resumed_run_does_not_rank_a_result_again(tmp_path):
    best_of(best_saver(tmp_path / "a", "2ba"), [0.9, 0.1], max_duration="6ba")
    best = best_of(best_saver(tmp_path / "b", "2ba"), [0.3, 0.2], load_path=tmp_path / "a" / "ep1-ba6")
    assert best == [[0.3, "ep2-ba10"]]


@pytest.mark.parametrize("interval", ["1ep", "3ba"])
@pytest.mark.parametrize("batch", [4, 12])
def test_the_result_of_an_evaluation_that_a_signal_broke_off_counts_when_it_comes(batch, interval, tmp_path):
    values = {4: [0.9, 0.2, 0.1], 12: [0.1, 0.2, 0.9]}[batch]

    def ask(state):
        if state.timestamp.batch == batch:
            signal.raise_signal(signal.SIGTERM)

    best = best_of(best_saver(tmp_path / "whole", interval), values)
    with pytest.raises(SystemExit):
        best_of(best_saver(tmp_path / "parted", interval), values, at("eval_batch_end", ask))
    again = best_of(best_saver(tmp_path / "parted", interval), values[batch // 6 :], autoresume=True)
    assert again[0][0] == best[0][0] == 0.9
    assert read_content(resolve(tmp_path / "parted")).state["metrics"]["eval/accuracy"] == values[-1]


@pytest.mark.parametrize("best", [3, [3], [["a", "ep0-ba1"]], [[0.5, 3]], [[True, "ep0-ba1"]], {"a": 1}])
def test_a_state_that_no_saver_has_saved_is_refused(best, tmp_path):
    saver = CheckpointSaver(tmp_path)
    saver.load_state_dict({"best": [[0.5, "ep0-ba1"]]})
    with pytest.raises(ArgumentError, match="in the state of CheckpointSaver has to be a list"):
        saver.load_state_dict({"best": best})
    assert saver.state_dict()["best"] == [[0.5, "ep0-ba1"]]


def test_without_its_folder_a_run_is_not_saved_or_stops_if_on_error_is_stop(tmp_path):
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "checkpoints"
    made = trainer(batches(4, 4), callbacks=CheckpointSaver(folder, "1ba"))
    with pytest.warns(CheckpointWarning, match=r"no checkpoint was written .*; training continues") as warned, made:
        made.fit()
    assert (made.state.timestamp.batch, len(warned)) == (2, 1)
    made = trainer(callbacks=CheckpointSaver(folder, on_error="stop"))
    with pytest.raises(CheckpointError, match="no checkpoint was written"), made:
        made.fit()


def test_what_another_run_has_saved_is_not_written_by_one_that_can_not_lock_the_folder(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    with run(tmp_path) as made:
        made.fit("2ba")
    monkeypatch.setattr("engine_core.checkpoint.store.Store.lock", fail)
    with run(tmp_path) as made:
        with pytest.warns(CheckpointWarning, match="No locks available"):
            made.fit("1ba")
        assert made.state.callbacks[0].written() == []


def run(folder, **settings):
    saver = CheckpointSaver(folder, "1ba", keep_last=None)
    return trainer(batches(8, 8, 8), net(), max_duration="2ep", callbacks=saver, **settings)


def names(folder):
    return sorted(path.name for path in folder.glob("ep*"))


@pytest.mark.filterwarnings("ignore:fit.. has nothing to do")  # where it resumes a finished run
def test_a_run_that_was_loaded_from_elsewhere_does_not_take_another_runs_folder_and_from_its_own_continues(tmp_path):
    for name in ("a", "b"):
        with run(tmp_path / name) as made:
            made.fit()
    before = names(tmp_path / "a")
    made = run(tmp_path / "a", load_path=tmp_path / "b" / "ep1-ba4")
    with made, pytest.raises(CheckpointError, match="holds checkpoints of another run"):
        made.fit()
    assert names(tmp_path / "a") == before
    with run(tmp_path / "a", autoresume=True) as made:  # it is not held either
        made.fit()
    for path in ("a", "a/ep1-ba4", "a/../a/ep1-ba4"):
        with run(tmp_path / "a", load_path=tmp_path / path) as made:
            made.fit()
        assert made.state.timestamp.batch == 6


def test_a_relative_folder_stays_where_it_was_when_the_saver_was_made(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with run("saved") as made:
        made.fit("2ba")
        monkeypatch.chdir(tmp_path / "elsewhere")
        made.fit("2ba")
    assert resolve(tmp_path / "saved").name == "ep1-ba4"
    assert not (tmp_path / "elsewhere" / "saved").exists()


@pytest.mark.parametrize("order", [("8ba", "2ba"), ("2ba", "8ba")])
def test_several_savers_continue_each_in_its_folder_from_the_latest(order, tmp_path):
    def made(**settings):
        savers = [CheckpointSaver(tmp_path / interval, interval) for interval in order]
        return trainer(batches(8, 8, 8), net(), max_duration="4ep", callbacks=savers, **settings)

    with made() as first:
        first.fit("5ba")
    (tmp_path / "8ba" / "latest").unlink()
    shutil.rmtree(tmp_path / "8ba" / "ep1-ba5")  # as if the process had been killed before
    with made(autoresume=True) as second:
        assert second.state.timestamp.batch == 5
        second.fit()
    assert [resolve(tmp_path / interval).name for interval in order] == ["ep4-ba12", "ep4-ba12"]


def test_a_result_at_which_the_run_was_paused_counts_for_the_next_regular_checkpoint(tmp_path):
    def made(folder, *callbacks, **settings):
        saver = CheckpointSaver(folder, "3ba", keep_last=1, keep_best=1, metric="eval/loss")
        given = {"eval_dataloader": batches(4), "eval_interval": "2ba", "seed": 1, **settings}
        return trainer(batches(*[8] * 10), net(), max_duration="10ba", callbacks=[*callbacks, saver], **given)

    with made(tmp_path / "whole") as whole:
        whole.fit()
    for batch in (2, 4, 5, 9):
        ask = lambda state, batch=batch: state.timestamp.batch == batch and state.pause_training()  # noqa: E731
        folder = tmp_path / str(batch)
        with made(folder, at("batch_checkpoint", ask)) as paused:
            paused.fit()
        with made(folder, autoresume=True) as resumed:
            resumed.fit()
        assert names(folder) == names(tmp_path / "whole"), batch
        assert resumed.state.callbacks[0].state_dict()["best"] == whole.state.callbacks[0].state_dict()["best"]
