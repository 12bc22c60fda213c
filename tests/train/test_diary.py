"""The events of a run in `metrics.jsonl`: those of `--json`, how often algorithms ran, and warnings."""

import inspect
import json
import os
import subprocess
import sys
import warnings
from itertools import pairwise

import pytest
from click.testing import CliRunner

from engine_core.cli import main
from engine_core.config import load_config
from engine_core.errors import CheckpointWarning, DestinationWarning
from engine_core.loggers import whole_lines
from engine_core.run import folder, train

from .leaving import DOZES, cli

__all__ = ["cli"]

WARNS = DOZES + "callbacks: [{target: 'left:Warns', args: {different: %d}}]\n"
CRASHES = DOZES + "callbacks: [{target: 'left:Bad', args: {at: 9}}]\n"


@pytest.fixture
def config(cli, tmp_path):
    """Return `config(text)`, which is read in an empty folder."""

    def config(text=DOZES):
        (tmp_path / "run.yaml").write_text(text)
        return load_config("run.yaml")

    return config


def read(tmp_path):
    """Return the events."""
    return [line for line in lines_in(tmp_path) if line["kind"] != "values"]


def lines_in(tmp_path):
    return [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]


def test_it_has_the_lines_of_json_to_the_letter_and_epochs_with_how_often_each_algorithm_ran(config, tmp_path):
    config()
    separate = {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}
    printed = CliRunner(**separate).invoke(main, ["train", "run.yaml", "--out", "out", "--json"]).stdout.splitlines()
    lines = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    assert [line for line in lines if json.loads(line)["kind"] not in ("epoch", "values")] == printed
    epochs = [line for line in read(tmp_path) if line["kind"] == "epoch"]
    assert [line["runs"].get("Doze/BATCH_END") for line in epochs] == [3, 3]
    seconds = [line["seconds"] for line in lines_in(tmp_path)]
    assert all(later > earlier - 0.5 for earlier, later in pairwise(seconds))


def test_progress_comes_now_and_then_and_each_run_is_counted_once(config, tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "PROGRESS_EVERY", 4)
    train(config(), tmp_path / "out")
    counted = [line for line in read(tmp_path) if "runs" in line]
    told = [("progress", 4), ("epoch", 6), ("progress", 8), ("progress", 12), ("epoch", 12)]
    assert [(line["kind"], line["step"]) for line in counted] == told
    assert sum(line["runs"].get("Doze/BATCH_END", 0) for line in counted) == 6


def test_after_a_resume_it_has_the_events_of_all_attempts_and_the_values_of_one(config, tmp_path, monkeypatch):
    with pytest.raises(ZeroDivisionError):
        train(config(CRASHES), tmp_path / "out")
    first = read(tmp_path)
    monkeypatch.setattr(sys.modules["left"].Bad, "batch_end", lambda *_: None)
    train(config(CRASHES.replace("seed: 7", "seed: 7, autoresume: true")), tmp_path / "out")
    assert [(line["kind"], line["step"], line["epoch"]) for line in read(tmp_path)] == [
        *(("start", 0, 0), ("epoch", 6, 1), ("evaluation", 6, 1), ("fail", 9, 1)),
        *(("resume", 6, 1), ("epoch", 12, 2), ("evaluation", 12, 2), ("end", 12, 2)),
    ]
    assert read(tmp_path)[:4] == first
    assert [line["step"] for line in lines_in(tmp_path) if "train/loss" in line] == [*range(12)]


def warnings_in(tmp_path):
    return [line["message"] for line in read(tmp_path) if line["kind"] == "warning"]


def test_each_warning_that_is_shown_is_told_once_and_shown_as_before(config, tmp_path):
    with pytest.warns(UserWarning, match="warned") as shown:
        train(config(WARNS % 2), tmp_path / "out")
    assert warnings_in(tmp_path) == ["warned 0", "warned 1"]
    assert {line["category"] for line in read(tmp_path) if line["kind"] == "warning"} == {"UserWarning"}
    assert len([warning for warning in shown if "warned" in str(warning.message)]) == 24


def test_a_warning_that_a_filter_leaves_out_is_not_told(config, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shower = warnings.showwarning
        train(config(WARNS % 1), tmp_path / "out")
        assert warnings.showwarning is shower
    assert warnings_in(tmp_path) == []


def test_after_two_hundred_warnings_it_says_that_the_rest_is_left_out(config, tmp_path):
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        train(config(WARNS % 300), tmp_path / "out")
    last = ["warned 199", "there were more than 200 warnings; the others are left out"]
    assert (len(warnings_in(tmp_path)), warnings_in(tmp_path)[199:]) == (201, last)


def full(lines, line):
    raise OSError(28, "No space left on device")


def test_a_full_disk_costs_lines_and_says_so_and_the_run_goes_on(config, tmp_path, monkeypatch):
    monkeypatch.setattr(whole_lines.Lines, "_append", full)
    with (
        pytest.warns(DestinationWarning, match=r"^logger destination RunFiles can't write in .*No space"),
        pytest.warns(CheckpointWarning, match=r"is not whole: \d+ lines for metrics.jsonl are lost"),
    ):
        results = train(config(), tmp_path / "out")
    assert results.batches == 12


def test_on_a_disk_that_is_full_for_a_while_no_line_is_lost(config, tmp_path, monkeypatch):
    append, calls = whole_lines.Lines._append, iter(range(1000))

    def full_for_a_while(lines, line):
        (full if 4 <= next(calls) < 12 else append)(lines, line)

    monkeypatch.setattr(whole_lines.Lines, "_append", full_for_a_while)
    with pytest.warns(DestinationWarning, match=r"^logger destination RunFiles can't write in .*No space"):
        results = train(config(), tmp_path / "out")
    lines = lines_in(tmp_path)
    assert {line["step"] for line in lines} == set(range(13))
    latest = {name: value for line in lines for name, value in line.items()}
    assert {name: results.metrics[name] for name in ("train/loss", "eval/loss")}.items() <= latest.items()


@pytest.mark.filterwarnings("error:logger destination")
def test_a_filter_makes_a_logger_that_fails_stop_the_run(config, tmp_path, monkeypatch):
    monkeypatch.setattr(whole_lines.Lines, "_append", full)
    with pytest.raises(DestinationWarning, match="RunFiles can't write in"):
        train(config(), tmp_path / "out")
    assert not (tmp_path / "out" / "results.json").exists()


FULL = """
import os, resource
from left import loader as batches

class Full(list):
    def __iter__(self):
        size = os.path.getsize("out/metrics.jsonl")
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        return super().__iter__()

def loader():
    return Full(batches(8))
"""


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="limits the size of files as Linux does")
def test_an_environment_variable_makes_a_logger_that_fails_stop_the_command(config, tmp_path):
    (tmp_path / "full.py").write_text(FULL)
    config(DOZES.replace("left:loader", "full:loader", 1).replace("args: {batches: 6}", "args: {}"))
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    environment["PYTHONWARNINGS"] = "error:logger destination"
    command = [sys.executable, "-B", "-m", "engine_core", "train", "run.yaml", "--out", "out"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "DestinationWarning: logger destination RunFiles can't write in 'out'" in done.stderr
    assert not (tmp_path / "out" / "results.json").exists()
