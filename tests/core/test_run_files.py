"""`RunFiles`: what is logged is in the files at once, and on a full disk kept in whole lines for when there is room."""

import csv
import json
import subprocess
import sys
from unittest.mock import ANY

import pytest

from engine_core import Event, Logger, State, Timestamp, Trace, Traces
from engine_core.errors import ArgumentError
from engine_core.loggers.run_files import RunFiles
from engine_core.loggers.whole_lines import MOST_DUE_BYTES, Lines, write_table


@pytest.fixture
def files(tmp_path):
    files = RunFiles(tmp_path / "run")
    yield files
    files.close()


def lines(files):
    read = [json.loads(line) for line in (files.folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in ("kind", "seconds")} for line in read]


def test_a_line_is_there_at_once_and_the_csv_has_a_row_a_step_and_grows_new_columns(files):
    assert not files.folder.exists()
    files.log_metrics({"train/loss": 0.5}, 0)
    assert lines(files) == [{"step": 0, "train/loss": 0.5}]
    files.log_metrics({"kept": 4}, 0)
    files.log_metrics({"train/loss": 0.25}, 1)
    files.log_metrics({"eval/loss": 1.0}, 1)
    files.log_metrics({"eval/loss": 2.0}, 1)  # a second time in the step
    files.close()
    again = RunFiles(files.folder)  # is continued
    again.log_metrics({"kept": 2}, 2)
    again.close()
    assert (files.folder / "metrics.csv").read_text().splitlines() == [
        *("step,train/loss,kept,eval/loss", "0,0.5,4,", "1,0.25,,1.0", "1,,,2.0", "2,,2,")
    ]


def test_what_a_reader_of_csv_would_refuse_is_only_in_json_and_the_table_says_so(files):
    logged = {"kept": "\udc80" * 20_000, "text": "\udc80" * 21_846, "list": [*range(30_000)], "n" * 131_073: 1}
    files.log_metrics(logged, 0)
    files.close()
    assert lines(files) == [{"step": 0, **logged}]
    with (files.folder / "metrics.csv").open(newline="", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert row == {
        "step": "0",
        "kept": r"\udc80" * 20_000,
        "text": "21,846 characters, see metrics.jsonl",
        "list": "198,890 characters, see metrics.jsonl",
        "131,073 characters, see metrics.jsonl": "1",
    }


def test_values_that_are_not_finite_are_null_in_json_and_arrays_numbers(files):
    files.log_metrics({"a": float("nan"), "b": float("inf"), "c": "text", "d": memoryview(b"\x01\x02")}, 0)
    assert lines(files) == [{"step": 0, "a": None, "b": None, "c": "text", "d": [1, 2]}]


def test_latest_holds_the_last_value_of_each_name_and_runs_how_often_each_algorithm_ran(files):
    files.log_metrics({"a": 1, "b": 2}, 0)
    files.log_metrics({"a": 3, ("a", 1): 4}, 1)  # a name that is not a string becomes one
    assert files.latest == {"a": 3, "b": 2, "('a', 1)": 4}
    done, missed = Trace("MixUp", Event.INIT, None, 0, run=True), Trace("EMA", Event.INIT, None, 1, run=False)
    for _ in range(2):
        files.log_traces(Traces({"MixUp/INIT": done, "EMA/INIT": missed}))
    assert files.runs == {"MixUp/INIT": 2}
    with pytest.raises(ArgumentError, match="is a file; choose another place"):
        RunFiles(files.folder / "metrics.jsonl")


linux = pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is a device of Linux")


def steps(folder):
    return [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def limited(monkeypatch):
    """Return a function that limits the size of files in bytes, until the test ends or it is given None."""
    resource = pytest.importorskip("resource")
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # the limit would cut it

    def limit(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, (former[0] if size is None else size, former[1]))

    yield limit
    limit(None)


def test_lines_and_rows_that_wait_are_in_the_checkpoint(tmp_path, limited, recwarn):
    files = RunFiles(tmp_path)
    for step in range(3):
        files.log_metrics({"loss": step / 2}, step)
    limited(20)
    for step in range(3, 6):
        files.log_metrics({"loss": step / 2}, step)
    state = json.loads(json.dumps(files.state_dict()))
    limited(None)
    again = RunFiles(tmp_path)
    again.load_state_dict(state)
    again.fit_start(State(), None)
    again.log_metrics({"loss": 3.0}, 6)
    again.close()
    assert steps(tmp_path) == [*range(7)]
    table = (tmp_path / "metrics.csv").read_text().splitlines()
    assert table == ["step,loss", *(f"{step},{step / 2}" for step in range(7))]


MANY = {f"layer{layer}/norm": layer / 7 for layer in range(40)}


def test_the_latest_that_wait_stay_small_in_the_checkpoint_and_the_others_are_lost(tmp_path, limited, recwarn):
    files = RunFiles(tmp_path)
    limited(20)
    for step in range(600):
        files.log_metrics({**MANY, "bad": float("nan")}, step)
    state = files.state_dict()
    waiting = [json.loads(line)["step"] for line in state["due"]]
    assert MOST_DUE_BYTES * 0.7 < len(json.dumps(state["due"], indent=1)) < MOST_DUE_BYTES * 1.1
    assert waiting == [*range(600 - len(waiting), 600)]
    assert state["lost"] == 600 - len(waiting)
    limited(None)
    files.close()
    assert steps(tmp_path) == waiting
    assert str(recwarn.list[-1].message) == (
        f"logger destination RunFiles could not write in {str(tmp_path)!r}, and its buffer overflowed: "
        f"{600 - len(waiting)} lines for metrics.jsonl are lost"
    )


def test_what_is_written_at_once_is_not_bounded(tmp_path, recwarn):
    files = RunFiles(tmp_path)
    files.start_over()
    for step in range(2):
        files.log_metrics({"text": "a" * MOST_DUE_BYTES}, step)
    files.fit_start(State(), None)
    files.close()
    assert steps(tmp_path) == [0, 1]
    assert not recwarn.list


def test_a_resumed_run_reports_at_its_end_what_was_lost_before_the_checkpoint(tmp_path, limited, recwarn):
    files = RunFiles(tmp_path)
    files.log_metrics({"loss": 0.5}, 0)
    limited(20)
    for step in range(1, 4):
        files.log_metrics({"text": "a" * MOST_DUE_BYTES}, step)
    state = json.loads(json.dumps(files.state_dict()))
    limited(None)
    again = RunFiles(tmp_path)
    again.load_state_dict(state)
    again.fit_start(State(), None)
    again.close()
    assert str(recwarn.list[-1].message).endswith("3 lines for metrics.jsonl are lost")


@linux
def test_what_is_lost_at_the_end_is_reported_in_one_line_with_what_was_dropped_earlier(tmp_path, recwarn):
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    files = RunFiles(tmp_path)
    for step in range(400):
        files.log_metrics({**MANY, "loss": step}, step)
    assert files.latest["loss"] == 399
    files.close()
    assert str(recwarn.list[-1].message) == (
        f"logger destination RunFiles can't write in {str(tmp_path)!r} at its end ([Errno 28] No space left on "
        "device): 400 lines for metrics.jsonl and the table metrics.csv are lost"
    )


def test_a_table_that_cannot_be_written_is_as_it_was_and_is_reported(tmp_path, recwarn):
    (tmp_path / "metrics.csv").write_text("an earlier one")
    files = RunFiles(tmp_path)
    files.log_metrics({"a": 1}, 0)
    (tmp_path / ".metrics.csv.new").mkdir()
    files.close()
    assert (tmp_path / "metrics.csv").read_text() == "an earlier one"
    assert str(recwarn.list[-1].message).endswith(": the table metrics.csv is lost")


PROGRAM = """
import json, resource, sys, warnings
from pathlib import Path
from engine_core import Engine, Logger, State, Timestamp
from engine_core.loggers.run_files import RunFiles

warnings.simplefilter("always")
state, files = State(), RunFiles(sys.argv[1])
path = Path(sys.argv[1], "metrics.jsonl")
with Engine(state, Logger([files])) as engine:
    engine.run_event("init")
    engine.run_event("fit_start")
    for batch in range(9):
        state.timestamp = Timestamp(batch=batch)
        room = path.stat().st_size + 9 if 3 <= batch < 5 else resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
        engine.logger.log_metrics({"train/loss": batch / 7, "text": "a" * 40})
        saved = files.state_dict()
        assert batch not in (3, 4) or saved["bytes"] == path.stat().st_size
        assert path.read_bytes().endswith(b"\\n")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the size of files as Linux does")
def test_lines_that_a_full_disk_does_not_take_are_written_whole_when_there_is_room(tmp_path):
    """The file may not grow by more than 9 bytes at steps 3 and 4."""
    command = [sys.executable, "-B", "-c", PROGRAM, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("DestinationWarning: logger destination RunFiles can't write in") == 1
    assert "([Errno 27] File too large); training continues" in done.stderr
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    with (tmp_path / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert all(len(row) == 3 and None not in row.values() for row in rows)
    assert [line["step"] for line in lines] == [int(row["step"]) for row in rows] == [*range(9)]


def test_a_last_line_without_its_end_is_not_merged_with_the_next_and_what_another_has_written_stays(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 0}\n{"st')
    first, second = Lines(path), Lines(path)
    for lines, line in ((first, "a"), (second, "b"), (first, "c")):
        lines.add(line)
        lines.flush()
    first.close()
    second.close()
    assert path.read_bytes() == b'{"step": 0}\n{"st\na\nb\nc\n'


def test_a_line_that_is_not_utf_8_is_passed_over_as_any_damaged_one(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 0, "a": "\xed\xa0\x80"}\n{"step": 1, "a": 2}\n')
    write_table(tmp_path / "metrics.jsonl", tmp_path / "metrics.csv")
    assert (tmp_path / "metrics.csv").read_text().split() == ["step,a", "1,2"]


def test_a_folder_that_cannot_be_made_is_reported_when_the_fit_starts(tmp_path):
    (tmp_path / "file").touch()
    files = RunFiles(tmp_path / "file" / "run")
    with pytest.raises(ArgumentError, match=r"^RunFiles can't write in '.*run' \(.*\); give it a folder that you can"):
        files.fit_start(State(), None)


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
    files = resumed(tmp_path / "b", {**state, "bytes": len(begun) - 5})  # no line ends there
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
