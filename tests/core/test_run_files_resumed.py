"""`RunFiles` of a resumed run: what was logged after the checkpoint is removed, and nothing else."""

import json
from unittest.mock import ANY

import pytest

from engine_core import Logger, State, Timestamp
from engine_core.loggers.run_files import RunFiles


def logged(folder, steps):
    """Log these steps and return the state after each."""
    files = RunFiles(folder)
    states = []
    for step in steps:
        files.log_metrics({"loss": step / 2}, step)
        states.append(json.loads(json.dumps(files.state_dict())))
    files.close()
    return states


def resumed(folder, state):
    files = RunFiles(folder)
    files.load_state_dict(state)
    return files


def start(files):
    files.fit_start(State(), Logger())


def steps(folder):
    return [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def table(folder):
    return (folder / "metrics.csv").read_text().splitlines()


def test_what_was_logged_after_the_checkpoint_goes_when_the_fit_starts_and_not_before(tmp_path):
    state = logged(tmp_path, range(4))[1]
    before = table(tmp_path)
    resumed(tmp_path, state).close()  # never reaches its fit
    assert (steps(tmp_path), table(tmp_path)) == ([0, 1, 2, 3], before)
    files = resumed(tmp_path, state)
    assert files.latest == {"loss": 0.5}
    assert steps(tmp_path) == [0, 1, 2, 3]  # a run that is still alive may be writing them
    start(files)
    assert steps(tmp_path) == [0, 1]
    files.log_metrics({"loss": 5.0}, 2)
    files.close()
    assert (steps(tmp_path), table(tmp_path)) == ([0, 1, 2], ["step,loss", "0,0.0", "1,0.5", "2,5.0"])


def test_what_is_logged_before_the_fit_comes_after_what_stays(tmp_path):
    state = logged(tmp_path, range(4))[1]
    files = resumed(tmp_path, state)
    files.log_metrics({"eval/loss": 7.0}, 2)
    assert files.latest == {"loss": 0.5, "eval/loss": 7.0}
    assert json.loads(json.dumps(files.state_dict())) == {**state, "latest": files.latest, "clock_s": ANY}
    start(files)
    files.close()
    assert steps(tmp_path) == [0, 1, 2]
    assert table(tmp_path) == ["step,loss,eval/loss", "0,0.0,", "1,0.5,", "2,,7.0"]


def test_what_is_logged_without_a_fit_is_written_at_the_end_of_an_evaluation_or_as_a_loop_trains(tmp_path):
    files = resumed(tmp_path, logged(tmp_path, range(2))[0])
    files.log_metrics({"eval/loss": 7.0}, 1)
    files.eval_end(State(), Logger())
    files.close()
    assert steps(tmp_path) == [0, 1, 1]
    files, state = RunFiles(tmp_path / "loop"), State()
    files.init(state, Logger())
    files.log_metrics({"parameters": 4}, 0)
    state.timestamp = Timestamp(batch=1)
    files.log_metrics({"loss": 0.5}, 1)
    assert steps(tmp_path / "loop") == [0, 1]
    files.close()


def test_what_is_logged_at_init_is_written_when_the_fit_starts_and_never_by_a_run_that_is_refused(tmp_path):
    logged(tmp_path, range(2))
    before = [path.read_bytes() for path in sorted(tmp_path.iterdir())]
    for begins in (False, True):
        files = RunFiles(tmp_path)
        files.init(State(), Logger())
        files.log_metrics({"parameters": 4}, 0)
        files.log_file("net.txt", "Linear", 0)
        assert [path.read_bytes() for path in sorted(tmp_path.iterdir())] == before
        if begins:
            start(files)
        files.close()
    assert steps(tmp_path) == [0, 1, 0]
    assert (tmp_path / "files" / "0" / "net.txt").read_text() == "Linear"


@pytest.mark.parametrize("size", [3, 200])
def test_files_of_another_run_are_continued_as_they_are(size, tmp_path):
    state = logged(tmp_path / "a", range(size))[-2]
    logged(tmp_path / "b", range(size))
    begun = (tmp_path / "b" / "metrics.jsonl").read_bytes()
    files = resumed(tmp_path / "b", {**state, "bytes": min(state["bytes"], len(begun) - 1)})
    start(files)
    files.log_metrics({"loss": 1.0}, 1000)
    files.close()
    assert (tmp_path / "b" / "metrics.jsonl").read_bytes().startswith(begun)
    assert steps(tmp_path / "b") == [*range(size), 1000]
    assert len(table(tmp_path / "b")) == 1 + size + 1


def test_a_folder_that_is_gone_is_made_again_and_a_relative_one_stays_where_it_was(tmp_path, monkeypatch):
    state = logged(tmp_path / "a", range(3))[1]
    monkeypatch.chdir(tmp_path)
    files = resumed("new", state)
    monkeypatch.chdir(tmp_path / "a")
    start(files)
    files.log_metrics({"loss": 1.0}, 2)
    files.close()
    assert steps(tmp_path / "new") == [2]


def test_what_is_null_in_a_line_is_nan_in_the_table(tmp_path):
    files = RunFiles(tmp_path)
    files.log_metrics({"a": None, "b": 1}, 0)
    state = json.loads(json.dumps(files.state_dict()))
    files.close()
    whole = table(tmp_path)
    files = resumed(tmp_path, state)
    start(files)
    assert files.latest == {"a": None, "b": 1}
    files.close()
    assert table(tmp_path) == whole == ["step,a,b", "0,nan,1"]


@pytest.mark.parametrize("part", [{"bytes": "x"}, {"lost": None}, {"due": 3}, {"latest": 1}, {"runs": {"A/INIT": "x"}}])
def test_nothing_is_taken_of_a_state_that_was_never_saved(part, tmp_path):
    state = logged(tmp_path, range(4))[1]
    files = RunFiles(tmp_path)
    with pytest.raises((TypeError, ValueError)):  # which the Trainer blames on the checkpoint
        files.load_state_dict({**state, **part})
    assert (files.latest, files.runs) == ({}, {})
    start(files)
    files.close()
    assert steps(tmp_path) == [0, 1, 2, 3]


def test_a_run_that_was_never_saved_begins_its_files_anew_when_the_fit_starts(tmp_path):
    logged(tmp_path, range(4))
    for begins, expected in ((False, [0, 1, 2, 3]), (True, [0, 1])):
        files = RunFiles(tmp_path)
        files.start_over()
        if begins:
            files.log_metrics({"loss": 7.0}, 0)  # at INIT
            assert steps(tmp_path) == [0, 1, 2, 3]
            start(files)
            files.log_metrics({"loss": 5.0}, 1)
        files.close()
        assert steps(tmp_path) == expected
    assert table(tmp_path) == ["step,loss", "0,7.0", "1,5.0"]


def test_where_nothing_was_saved_files_are_cut_to_the_loaded_checkpoint_or_without_a_place_for_it_begin_anew(tmp_path):
    state = logged(tmp_path / "a", range(12))[3]
    logged(tmp_path / "b", range(4, 6))  # an attempt that was killed
    for folder, kept in ((tmp_path / "a", [0, 1, 2, 3]), (tmp_path / "b", [])):
        files = resumed(folder, state)
        files.start_over()
        start(files)
        files.log_metrics({"loss": 5.0}, 4)
        files.close()
        assert steps(folder) == [*kept, 4]
        assert table(folder) == ["step,loss", *(f"{step},{step / 2}" for step in kept), "4,5.0"]


def test_a_resumed_run_has_one_clock_for_all_attempts(tmp_path):
    saved = {**logged(tmp_path, [1])[0], "clock_s": 100.0, "fit_s": 50.0}
    files = resumed(tmp_path, saved)
    assert (100 <= files.clock_s < 160, files.fit_s) == (True, 50.0)
    start(files)
    files.log_metrics({"loss": 1.0}, 2)
    assert 100 <= json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])["seconds"] < 160
    files.fit_end(State(), Logger())
    ended = files.fit_s
    assert 50 < ended == files.fit_s < 110
    assert json.loads(json.dumps(files.state_dict()))["fit_s"] == ended
    files.close()
