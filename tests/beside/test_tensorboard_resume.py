"""A run that is cut and resumed: TensorBoard has each of its values once."""

import os
import signal

import pytest

from engine_core_tensorboard import TensorBoard

from . import tracker_runs as runs
from .tracker_runs import Cut, SendsAtOnce, Stopped, fit, in_tensorboard, same_values, stop


@pytest.fixture(scope="module")
def whole():
    return runs.expected()


@pytest.fixture(scope="module")
def train():
    with runs.killing() as train:
        yield train


def attempt(folder, *cuts, **settings):
    tracker = TensorBoard(folder / "tb")
    fit(tracker, folder, *cuts, SendsAtOnce(tracker), **{"run_name": "mine", **settings})


def files_in(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("point", runs.POINTS[::3], ids=str)
def test_a_run_that_is_killed_has_each_value_once(point, train, whole, tmp_path):
    job = {"tracker": "tensorboard", "place": str(tmp_path / "tb"), "folder": str(tmp_path)}
    assert [train(point=point, **job) for _ in range(2)] == [-signal.SIGKILL] * 2
    assert train(point=None, **job) == 0
    assert same_values(in_tensorboard(tmp_path / "tb"), whole)


def test_a_run_that_is_cut_again_and_again_has_each_value_once(whole, tmp_path):
    for point in runs.POINTS:
        with pytest.raises(Stopped):
            attempt(tmp_path, Cut(*point, stop))
    attempt(tmp_path)
    assert same_values(in_tensorboard(tmp_path / "tb"), whole)


def test_half_an_event_at_the_end_of_a_file_is_cut_off(whole, tmp_path):
    with pytest.raises(Stopped):
        attempt(tmp_path, Cut("batch_start", 5, stop))
    (file,) = (tmp_path / "tb").iterdir()
    with file.open("ab") as end:
        end.write(b"\x20\0\0\0\0\0\0\0half")  # what a process leaves that is killed as it writes
    attempt(tmp_path)
    assert same_values(in_tensorboard(tmp_path / "tb"), whole)


def test_a_file_that_lost_its_end_is_not_filled_with_zeros(tmp_path):
    with pytest.raises(Stopped):
        attempt(tmp_path, Cut("batch_start", 5, stop))
    (file,) = (tmp_path / "tb").iterdir()
    os.truncate(file, 200)
    attempt(tmp_path)
    assert file.stat().st_size == 200


def test_without_a_checkpoint_of_its_own_a_run_starts_over(whole, tmp_path):
    with pytest.raises(Stopped):
        attempt(tmp_path, Cut("batch_start", 1, stop))
    (tmp_path / "tb" / "events.out.tfevents.1.of.another").write_bytes(b"")
    (before,) = (tmp_path / "tb").glob("*.engine-core")
    attempt(tmp_path)
    assert not before.exists()
    assert (tmp_path / "tb" / "events.out.tfevents.1.of.another").exists()
    assert same_values(in_tensorboard(tmp_path / "tb"), whole)


def test_a_run_that_does_not_resume_leaves_what_is_there(whole, tmp_path):
    attempt(tmp_path / "first", autoresume=False)
    before = files_in(tmp_path / "first" / "tb")
    fit(TensorBoard(tmp_path / "first" / "tb"), tmp_path / "second", autoresume=False)
    assert before.items() < files_in(tmp_path / "first" / "tb").items()


def test_a_run_that_starts_from_another_runs_checkpoint_leaves_that_runs_values(whole, tmp_path):
    attempt(tmp_path / "first")
    before = files_in(tmp_path / "first" / "tb")
    (path,) = (tmp_path / "first" / "checkpoints").glob("*-ba6")
    attempt(tmp_path / "second", load_path=path, run_name="other")
    assert files_in(tmp_path / "first" / "tb") == before
    found = in_tensorboard(tmp_path / "second" / "tb")
    assert same_values(found, [value for value in whole if value[1] >= 6])


def test_the_order_and_the_hyperparameters_are_told_once(tmp_path):
    for point in runs.POINTS[2:6]:
        with pytest.raises(Stopped):
            attempt(tmp_path, Cut(*point, stop))
    attempt(tmp_path)
    files = runs.read_tensorboard(tmp_path / "tb")
    assert [len(files.Tensors(name)) for name in files.Tags()["tensors"]] == [1, 1]


def test_a_state_that_it_never_saved_is_refused():
    for files in ({"a": -1}, {"a": "1"}, {"a": True}, [1]):
        with pytest.raises(ValueError, match="in the state of TensorBoard is not something it saved"):
            TensorBoard().load_state_dict({"files": files})


def test_a_paused_run_continues_in_the_same_trainer_and_in_the_next_one(whole, tmp_path):
    with runs.trainer(TensorBoard(tmp_path / "tb"), tmp_path) as trainer:
        for _ in range(4):
            trainer.fit("1ba")
    attempt(tmp_path)
    found = {value[:2] for value in in_tensorboard(tmp_path / "tb")}
    assert {value[:2] for value in whole} <= found


def test_two_runs_of_one_instance_are_two_runs(whole, tmp_path):
    tracker = TensorBoard()
    for name in ("first", "second"):
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(tmp_path)
            fit(tracker, None, run_name=name)
    for name in ("first", "second"):
        assert same_values(in_tensorboard(tmp_path / "tensorboard" / name), whole)
