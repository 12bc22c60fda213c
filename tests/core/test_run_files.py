"""`RunFiles`: what is logged is in the files at once, and the CSV's columns may grow."""

import csv
import json

import pytest

from engine_core import Event, Trace, Traces
from engine_core.errors import ArgumentError
from engine_core.loggers.run_files import RunFiles


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
    assert (files.folder / "metrics.csv").read_text().splitlines() == [
        "step,train/loss,kept,eval/loss",
        "0,0.5,4,",
        "1,0.25,,1.0",
        "1,,,2.0",
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


def test_existing_files_are_continued(files):
    files.log_metrics({"a": 1}, 0)
    files.close()
    again = RunFiles(files.folder)
    again.log_metrics({"b": 2}, 1)
    again.close()
    assert lines(files) == [{"step": 0, "a": 1}, {"step": 1, "b": 2}]
    assert (files.folder / "metrics.csv").read_text().splitlines() == ["step,a,b", "0,1,", "1,,2"]


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
