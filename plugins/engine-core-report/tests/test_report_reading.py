"""What a report reads of a run: whole, half, damaged and hostile ones."""

import json
import math
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_core.errors import ArgumentError
from engine_core_report import read_run
from engine_core_report.series import Stretch, runs_of, strip_of, thin

from .left_runs import EVENTS, MANIFEST, METRICS, RESULTS, append, write_run


def test_a_finished_run_is_read_whole(tmp_path):
    run = read_run(write_run(tmp_path / "run"))
    assert (run.status, run.started, run.steps) == ("finished", "2020-01-01T00:00:00+0000", 4)
    assert run.series["train/loss"][:3] == ([0, 1, 2, 3], [1.0, 2.0, 3.0, 4.0], [2.0, 1.0, 0.75, 0.5])
    assert run.best == {"eval/loss": {"value": 0.125, "step": 2, "epoch": 1}}
    assert run.strips == {"A/BEFORE_FORWARD": [Stretch(0, 2, 2), Stretch(2, 4, 1)]}
    assert run.timing.spans["optimizer"] == (4, 0.5, 0.5)
    assert run.warnings == []
    assert read_run(tmp_path / "run" / "manifest.json") == run


@pytest.mark.parametrize(
    ("results", "last", "status"),
    [
        (RESULTS, "end", "finished"),
        (None, "pause", "paused"),
        (None, "progress", "unfinished"),
        (None, "fail", "unfinished"),
        (RESULTS, "resume", "unfinished"),  # it trains again
        (RESULTS, "of a later version", "finished"),
    ],
)
def test_the_status_is_told_by_the_results_and_the_last_kind(tmp_path, results, last, status):
    kinds = [{"kind": kind, "step": 4, "epoch": 2, "seconds": 5.0} for kind in ("end", last)]
    assert read_run(write_run(tmp_path / "run", events=kinds, results=results)).status == status


def test_results_of_an_attempt_before_are_not_those_of_a_run_that_goes_on(tmp_path):
    best = {"eval/loss": {"value": 0.0625, "step": 9, "epoch": 3}}
    more = [
        {"kind": "resume", "step": 4, "epoch": 2, "seconds": 5.0},
        {"kind": "evaluation", "step": 9, "epoch": 3, "seconds": 8.0, "best": best},
    ]
    run = read_run(write_run(tmp_path / "run", events=[*EVENTS, *more]))
    assert (run.status, run.results, run.steps, run.best) == ("unfinished", {}, 9, best)


def test_a_run_without_a_diary_is_finished_once_it_has_results(tmp_path):
    assert read_run(write_run(tmp_path / "a", events=None)).status == "finished"
    assert read_run(write_run(tmp_path / "b", events=None, results=None)).status == "unfinished"


def test_a_run_that_has_logged_nothing_is_an_empty_one(tmp_path):
    run = read_run(write_run(tmp_path / "run", metrics=None, events=None, results=None, timing=None))
    assert (run.series, run.last, run.strips, run.timing, run.checkpoints, run.warnings) == ({}, {}, {}, None, [], [])


def test_a_last_line_that_is_being_written_is_left_out(tmp_path):
    folder, last = write_run(tmp_path / "run", metrics=METRICS[:-1]), json.dumps(METRICS[-1])
    whole = (folder / "metrics.jsonl").read_text()
    for cut in range(1, len(last) + 1, 7):
        (folder / "metrics.jsonl").write_text(whole + last[:cut])
        run = read_run(folder)
        assert run.series["eval/loss"].y == [0.125]
        assert run.warnings == []


@pytest.mark.parametrize(
    "line",
    [
        "\x00\x01",
        "{",
        "3",
        '{"step": 1}',
        '{"step": NaN, "seconds": 1}',
        '{"step": true, "seconds": 1}',
        "[" * 100_000,
        '{"step": 1, "seconds": 1, "train/loss": ' + "9" * 5000 + "}",
        '{"step": 1, "seconds": 1, "text": "' + "x" * 2**20 + '"}',
        '{"step": 1, "seconds": 1, "text": "' + "x" * 3 * 2**20 + '"}',
    ],
    ids=range(10),
)
def test_a_damaged_line_is_counted_and_the_others_are_read(tmp_path, line):
    folder = write_run(tmp_path / "run", metrics=METRICS[:2])
    append(folder / "metrics.jsonl", f"{line}\n{json.dumps(METRICS[3])}\n")
    run = read_run(folder)
    assert run.warnings == ["1 line of metrics.jsonl can't be read and is left out"]
    assert run.series["train/loss"].y == [2.0, 1.0, 0.75]
    append(folder / "metrics.jsonl", "x\n")
    assert read_run(folder).warnings == ["2 lines of metrics.jsonl can't be read and are left out"]


def test_a_value_that_is_not_finite_is_a_gap_and_told(tmp_path):
    values = [1.0, None, math.nan, math.inf, 10**400, 2.0]
    lines = [{"step": step, "seconds": step, "train/loss": value} for step, value in enumerate(values)]
    run = read_run(write_run(tmp_path / "run", metrics=lines))
    assert run.series["train/loss"].y == [1.0, None, None, None, None, 2.0]
    assert run.warnings == ["train/loss was not finite 4 times"]


def test_text_and_booleans_are_no_series(tmp_path):
    line = {"step": 1, "seconds": 1.0, "text": "<b>", "switch": True, "list": [1]}
    run = read_run(write_run(tmp_path / "run", metrics=[line, line]))
    assert run.series == {}
    assert run.last == {"text": "<b>", "switch": True, "list": [1]}


def test_a_drop_of_the_seconds_is_a_resume_and_seconds_never_go_back(tmp_path):
    times = [1.0, 2.0, 0.5, 1.5]
    lines = [{"step": step, "seconds": s, "train/loss": 1.0 / (1 + step)} for step, s in enumerate(times)]
    run = read_run(write_run(tmp_path / "run", metrics=lines, events=None))
    assert run.series["train/loss"].t == [1.0, 2.0, 2.0, 3.0]
    assert run.resumed == [(2, 2.0)]
    events = [*EVENTS[:2], {"kind": "resume", "step": 2, "epoch": 1, "seconds": 2.75}, *EVENTS[2:]]
    assert read_run(write_run(tmp_path / "told", events=events)).resumed == [(2, 2.75)]  # the diary tells it too


def test_steps_that_go_back_replace_what_was_logged_there(tmp_path):
    lines = [{"step": s, "seconds": i, "train/loss": float(i)} for i, s in enumerate([0, 1, 2, 3, 1, 2])]
    series = read_run(write_run(tmp_path / "run", metrics=lines)).series["train/loss"]
    assert (series.x, series.y) == ([0, 1, 2], [0.0, 4.0, 5.0])


def test_without_results_the_best_is_found_by_the_rule_and_the_config(tmp_path):
    names = {"eval/loss": [3.0, 1.0, 2.0], "eval/accuracy": [0.5, 0.75, 0.5], "eval/gap": [1.0, 0.5, 2.0]}
    lines = [{"step": i, "seconds": i, **{n: values[i] for n, values in names.items()}} for i in range(3)]
    config = {**MANIFEST["config"], "results": {"lower": ["gap"]}}
    manifest = {**MANIFEST, "config": config}
    run = read_run(write_run(tmp_path / "run", manifest=manifest, metrics=lines, events=None, results=None))
    assert {name: best["value"] for name, best in run.best.items()} == {
        "eval/loss": 1.0,
        "eval/accuracy": 0.75,
        "eval/gap": 0.5,
    }


def test_a_config_that_contradicts_itself_on_what_is_better_is_told_and_the_rest_is_read(tmp_path):
    config = {"results": {"lower": ["eval/loss", "eval/a"], "higher": ["eval/loss"]}}
    run = read_run(write_run(tmp_path / "run", manifest={**MANIFEST, "config": config}, results=None))
    assert run.warnings == ["the config lists 'eval/loss' under both `lower` and `higher`"]
    assert run.best["eval/loss"]["value"] == 0.125


def test_what_ran_after_the_step_of_a_resume_is_counted_once():
    lines = [
        {"kind": "start", "step": 0},
        {"kind": "progress", "step": 10, "runs": {"A/X": 10}},
        {"kind": "progress", "step": 20, "runs": {"A/X": 6}},
        {"kind": "resume", "step": 15},
        {"kind": "progress", "step": 20, "runs": {"A/X": 5}},
    ]
    assert runs_of(lines) == {"A/X": [Stretch(0, 10, 10), Stretch(10, 15, 3.0), Stretch(15, 20, 5)]}
    assert strip_of(runs_of(lines)["A/X"], steps=20, cells=4) == [1.0, 1.0, 0.6, 1.0]


def test_warnings_of_the_run_and_how_it_failed_are_told(tmp_path):
    warning = {"kind": "warning", "step": 1, "epoch": 0, "seconds": 1, "category": "UserWarning", "message": "odd"}
    fail = {"kind": "fail", "step": 1, "epoch": 0, "seconds": 1}
    run = read_run(write_run(tmp_path / "run", events=[*EVENTS[:1], warning, warning, fail], results=None))
    assert run.warnings == ["UserWarning: odd", "the last attempt failed after 1 batch"]


@pytest.mark.parametrize("name", ["metrics.jsonl", "results.json"])
def test_a_link_in_a_run_is_not_followed(tmp_path, name):
    folder = write_run(tmp_path / "run")
    (folder / name).rename(tmp_path / name)
    (folder / name).symlink_to(tmp_path / name)
    assert read_run(folder).warnings == [f"{name} is a link, which is not followed"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("name", ["metrics.jsonl", "results.json"])
def test_a_pipe_in_a_run_is_not_waited_for(tmp_path, name):
    folder = write_run(tmp_path / "run")
    (folder / name).unlink()
    os.mkfifo(folder / name)
    assert read_run(folder).warnings == [f"{name} is not a file"]


def test_a_file_that_is_too_large_is_skipped_and_told(tmp_path):
    folder = write_run(tmp_path / "run")
    os.truncate(folder / "metrics.jsonl", 2**30 + 1)
    run = read_run(folder)
    assert run.warnings == ["metrics.jsonl is larger than 1,024 MiB and is not read"]
    assert run.series == {}


def test_a_newer_timing_is_left_out_and_told(tmp_path):
    run = read_run(write_run(tmp_path / "run", timing={"schema": 2, "spans": {}}))
    assert (run.timing, run.warnings) == (None, ["the timing has schema 2, and 1 is read: left out"])


@pytest.mark.parametrize("spans", [[], {"a": 1}, {"a": {"count": -1, "seconds": 1}}])
def test_spans_that_are_none_are_passed_over(tmp_path, spans):
    assert read_run(write_run(tmp_path / "run", timing={"schema": 1, "spans": spans})).timing is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({**MANIFEST, "schema": 2}, "schema 2, this engine-core reads schema 1"),
        ({"a": 1}, "is not a run's manifest"),
        (None, "holds no manifest.json"),
    ],
)
def test_what_is_no_run_or_of_a_newer_version_is_refused(tmp_path, content, message):
    with pytest.raises(ArgumentError, match=message):
        read_run(write_run(tmp_path / "run", manifest=content))


def test_a_manifest_that_is_a_link_is_refused(tmp_path):
    folder = write_run(tmp_path / "run")
    (folder / "manifest.json").rename(tmp_path / "elsewhere.json")
    (folder / "manifest.json").symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(ArgumentError, match="is a link"):
        read_run(folder)


values = st.lists(st.one_of(st.none(), st.floats(-1e300, 1e300)), min_size=1, max_size=300)


@given(values, st.integers(1, 50))
def test_a_thinned_series_loses_no_spike_and_no_end(y, most):
    x = list(range(len(y)))
    thinned = thin(x, x, y, most)
    good = [value for value in y if value is not None]
    assert len(thinned.x) <= most
    assert thinned.x[-1] == x[-1]
    assert thinned.not_finite == len(y) - len(good)
    low, high = thinned.low or thinned.y, thinned.high or thinned.y
    if good:
        assert min(v for v in low if v is not None) == pytest.approx(min(good), rel=1e-5)
        assert max(v for v in high if v is not None) == pytest.approx(max(good), rel=1e-5)
