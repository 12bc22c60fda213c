"""Where TensorBoard's files go, and what happens where they can't be written."""

import math
import shutil
import sys
import threading
import warnings

import pytest

from engine_core import Logger, State
from engine_core.errors import DestinationWarning
from engine_core.loggers import values
from engine_core_author import RecordingDestination
from engine_core_tensorboard import TensorBoard

from . import tracker_runs as runs
from .test_tensorboard_values import running
from .tracker_runs import Cut, SendsAtOnce, Stopped, fit, in_tensorboard, same_values, stop

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # TensorBoard's thread


@pytest.fixture
def disk(monkeypatch):
    """Return a function that lets no file of this process grow beyond a few bytes, until it is called with False."""
    resource = pytest.importorskip("resource")
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # the limit would cut it

    def is_full(full, size=20):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size if full else former[0], former[1]))

    yield is_full
    is_full(False)


@pytest.mark.parametrize("place", ["a file", "below a file"])
def test_a_place_that_cant_be_is_an_error_before_anything_is_trained(place, tmp_path):
    (tmp_path / "file").write_text("x")
    folder = tmp_path / "file" / ("" if place == "a file" else "below")
    seen = []
    with pytest.raises(ValueError, match=r"TensorBoard can't write in '.*file.*; give it a folder that you can write"):
        fit(TensorBoard(folder), None, Cut("batch_start", 0, seen.append))
    assert seen == []


def test_a_place_elsewhere_is_refused_at_once():
    with pytest.raises(ValueError, match=r"folder='s3://bucket/x' has to be on a disk"):
        TensorBoard("s3://bucket/x")


def test_without_an_argument_it_is_in_the_runs_folder(tmp_path):
    with runs.trainer(TensorBoard(), None) as made:
        made.state.folder = tmp_path / "run"
        made.fit()
    assert len(list((tmp_path / "run" / "tensorboard").glob("*.engine-core"))) == 1


@pytest.mark.parametrize(("name", "folder"), [("mine", "mine"), ("../../x", "_._.._x"), ("..", "_.")])
def test_a_run_without_a_folder_has_one_by_its_name(name, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fit(TensorBoard(), None, run_name=name)
    assert [path.name for path in tmp_path.iterdir()] == ["tensorboard"]
    assert [path.name for path in (tmp_path / "tensorboard").iterdir()] == [folder]


def test_a_resumed_run_without_a_folder_and_a_name_finds_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tracker = TensorBoard()
    with pytest.raises(Stopped):
        fit(tracker, tmp_path, SendsAtOnce(tracker), Cut("batch_start", 5, stop))
    fit(TensorBoard(), tmp_path)
    (folder,) = (tmp_path / "tensorboard").iterdir()
    assert same_values(in_tensorboard(folder), runs.expected())


def test_the_working_directory_may_change(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    tracker = TensorBoard("tb")
    fit(tracker, None, SendsAtOnce(tracker), Cut("batch_start", 2, lambda _: monkeypatch.chdir(tmp_path / "elsewhere")))
    assert same_values(in_tensorboard(tmp_path / "tb"), runs.expected())
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_link_to_a_file_is_never_cut_or_deleted(tmp_path):
    other = tmp_path / "precious"
    other.write_text("x" * 100)
    (tmp_path / "tb").mkdir()
    (tmp_path / "tb" / "link.engine-core").symlink_to(other)
    tracker = TensorBoard(tmp_path / "tb")
    tracker.start_over()
    fit(tracker, tmp_path)
    assert other.read_text() == "x" * 100
    assert (tmp_path / "tb" / "link.engine-core").is_symlink()


def test_what_fails_later_is_told_and_the_training_is_the_same(disk, tmp_path):
    tracker, beside = TensorBoard(tmp_path), RecordingDestination()
    with pytest.warns(DestinationWarning) as caught:
        fit([tracker, beside], None, SendsAtOnce(tracker), Cut("batch_start", 1, lambda _: disk(True)))
    disk(False)
    failed, lost = (str(warning.message) for warning in caught)
    assert failed.startswith(
        "logger destination TensorBoard (engine-core-tensorboard 0.1.0) failed in fit_end at batch 9"
    )
    assert lost == "logger destination TensorBoard: 22 entries are lost, as nothing could be sent"
    assert len({step for step, _ in beside.metrics}) == 10
    assert same_values(in_tensorboard(tmp_path), [v for v in runs.expected() if v[:2] in FIRST])


FIRST = [("train/loss", 0), ("train/lr/0", 0)]


@pytest.mark.parametrize("room", [0, 100])
def test_a_disk_that_has_room_again_has_each_value_once(room, disk, tmp_path, monkeypatch):
    monkeypatch.setattr(values, "_REST", 0)
    tracker, failures = TensorBoard(tmp_path), []

    def write(state):
        try:
            tracker.fit_end(state, Logger())
        except OSError as error:
            failures.append(error)

    def fill(state):
        written = sum(file.stat().st_size for file in tmp_path.iterdir())
        disk(state.timestamp.batch < 6, 20 if failures else written + room)
        write(state)

    fit(tracker, None, Cut("batch_end", 3, fill))  # three steps wait, and of these a part can be written
    assert len(failures) > 2
    assert len(list(tmp_path.iterdir())) == 2  # the one that was cut, and the one that all the rest is in
    assert same_values(in_tensorboard(tmp_path), runs.expected())


def test_values_that_wait_for_the_disk_are_in_the_checkpoint(disk, tmp_path):
    tracker = TensorBoard(tmp_path)
    with running(tracker) as (_, logger):
        logger.log_metrics({"a": 1.0}, 1)
        tracker.state_dict()
        disk(True)
        logger.log_metrics({"a": math.nan, "b": 2.0}, 2)
        logger.log_file("lost.txt", "x", 2)
        state = tracker.state_dict()
        logger.log_metrics({"a": 3.0}, 3)
        with pytest.warns(DestinationWarning, match="4 entries are lost"):
            tracker.close()
        disk(False)
    again = TensorBoard(tmp_path)
    again.load_state_dict(state)
    again.fit_start(State(), Logger())
    again.log_metrics({"a": 3.0}, 3)
    again.close()
    found = sorted(in_tensorboard(tmp_path), key=lambda value: value[:2])
    assert [value[:2] for value in found] == [("a", 1), ("a", 2), ("a", 3), ("b", 2)]


def test_what_waits_has_a_bound_and_dropping_is_told(disk, tmp_path):
    tracker = TensorBoard(tmp_path)
    with running(tracker) as (_, logger), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        disk(True)
        logger.log_metrics({"a": 0.0}, 0)
        tracker.state_dict()
        for step in range(1, 12_500):
            logger.log_metrics({"a": float(step)}, step)
        assert len(tracker.state_dict()["due"]) == 10_000
        disk(False)
        tracker.close()
    assert [str(warning.message) for warning in caught] == [
        "logger destination TensorBoard: more than 10,000 values wait to be sent, and the oldest are dropped",
        "logger destination TensorBoard: 2,500 entries are lost, as nothing could be sent",
    ]
    assert [step for _, step, _ in in_tensorboard(tmp_path)] == [*range(2_500, 12_500)]


def test_a_folder_that_is_deleted_is_told_without_a_traceback(tmp_path, monkeypatch):
    printed = []
    monkeypatch.setattr(threading, "excepthook", printed.append)
    tracker = TensorBoard(tmp_path / "tb")
    with pytest.warns(DestinationWarning):
        fit(tracker, None, Cut("fit_end", 9, lambda _: shutil.rmtree(tmp_path / "tb")))
    assert printed == []


def test_without_a_fit_nothing_is_written_and_that_is_told(tmp_path):
    made = runs.trainer(TensorBoard(tmp_path / "tb"), None)
    made.eval()
    with pytest.warns(DestinationWarning, match="1 entry is lost, as no fit began"):
        made.close()
    assert not (tmp_path / "tb").exists()
