"""The events of a run in `metrics.jsonl`: those of `--json`, how often algorithms ran, and warnings."""

import inspect
import json
import sys
import warnings

import pytest
from click.testing import CliRunner

from engine_core.cli import main
from engine_core.config import load_config
from engine_core.errors import CheckpointWarning, DestinationWarning
from engine_core.loggers import whole_lines
from engine_core.run import folder, train

MODULE = """
    import warnings
    import torch
    from engine_core import Algorithm, AlgorithmMetadata, Callback

    def net():
        return torch.nn.Linear(4, 3)

    def loader(batches=6):
        return [(torch.randn(8, 4), torch.randint(3, (8,))) for _ in range(batches)]

    class Doze(Algorithm):
        metadata = AlgorithmMetadata(events=("batch_end",))

        def match(self, event, state):
            return state.timestamp.batch % 2 == 0

        def apply(self, event, state, logger):
            pass

    class Warns(Callback):
        def __init__(self, different=1):
            self.different = different

        def batch_end(self, state, logger):
            for number in range(self.different):
                warnings.warn(f"warned {number}")

    class Crash(Callback):
        crashes = True

        def batch_end(self, state, logger):
            if self.crashes and state.timestamp.batch == 9:
                raise ZeroDivisionError("on purpose")
"""
CONFIG = """
model: {target: "note:net"}
data: {target: "note:loader"}
eval_data: {target: "note:loader", args: {batches: 1}}
loss: {target: "torch.nn:CrossEntropyLoss"}
optimizer: {target: "torch.optim:SGD", args: {lr: 0.1}}
trainer: {max_duration: 2ep, seed: 7}
algorithms: [doze]
"""
WARNS = CONFIG + "callbacks: [{target: 'note:Warns', args: {different: %d}}]\n"
CRASHES = CONFIG + "callbacks: [{target: 'note:Crash'}]\n"


@pytest.fixture
def config(install, tmp_path, monkeypatch):
    """Return `config(text)`, which is read in an empty folder."""
    monkeypatch.chdir(tmp_path)
    install("note-plugin", {"algorithms": {"doze": "note:Doze"}}, {"note": MODULE}, version="1.2")

    def config(text=CONFIG):
        (tmp_path / "run.yaml").write_text(text)
        return load_config("run.yaml")

    return config


def read(tmp_path):
    """Return the events."""
    return [line for line in lines_in(tmp_path) if line["kind"] != "values"]


def lines_in(tmp_path):
    return [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]


def told(tmp_path):
    """Return kind, step and epoch of each line."""
    return [(line["kind"], line["step"], line["epoch"]) for line in read(tmp_path)]


def test_it_has_the_lines_of_json_to_the_letter_and_epochs_with_how_often_each_algorithm_ran(config, tmp_path):
    config()
    separate = {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}
    printed = CliRunner(**separate).invoke(main, ["train", "run.yaml", "--out", "out", "--json"]).stdout.splitlines()
    lines = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    assert [line for line in lines if json.loads(line)["kind"] not in ("epoch", "values")] == printed
    assert told(tmp_path) == [
        ("start", 0, 0),
        ("epoch", 6, 1),
        ("evaluation", 6, 1),
        ("epoch", 12, 2),
        ("evaluation", 12, 2),
        ("end", 12, 2),
    ]
    assert [line["runs"] for line in read(tmp_path) if line["kind"] == "epoch"] == [{"Doze/BATCH_END": 3}] * 2


def test_its_seconds_are_on_the_clock_of_the_metrics(config, tmp_path):
    train(config(), tmp_path / "out")
    logged = [line for line in lines_in(tmp_path) if line["kind"] == "values"]
    assert [line["seconds"] for line in read(tmp_path)] == sorted(line["seconds"] for line in read(tmp_path))
    for line in read(tmp_path)[1:-1]:
        assert abs(line["seconds"] - max(x["seconds"] for x in logged if x["step"] <= line["step"])) < 0.5


def test_progress_comes_now_and_then_and_each_run_is_counted_once(config, tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "PROGRESS_EVERY", 4)
    train(config(), tmp_path / "out")
    counted = [(line["kind"], line["step"], line["runs"]) for line in read(tmp_path) if "runs" in line]
    assert [(kind, step) for kind, step, _ in counted] == [
        ("progress", 4),
        ("epoch", 6),
        ("progress", 8),
        ("progress", 12),
        ("epoch", 12),
    ]
    assert sum(runs.get("Doze/BATCH_END", 0) for *_, runs in counted) == 6


def test_after_a_resume_it_tells_of_all_attempts(config, tmp_path, monkeypatch):
    with pytest.raises(ZeroDivisionError):
        train(config(CRASHES), tmp_path / "out")
    monkeypatch.setattr(sys.modules["note"].Crash, "crashes", False)
    again = CRASHES.replace("seed: 7", "seed: 7, autoresume: true")
    train(config(again), tmp_path / "out")
    assert told(tmp_path) == [
        ("start", 0, 0),
        ("epoch", 6, 1),
        ("evaluation", 6, 1),
        ("fail", 9, 1),
        ("resume", 6, 1),
        ("epoch", 12, 2),
        ("evaluation", 12, 2),
        ("end", 12, 2),
    ]
    assert [line["runs"] for line in read(tmp_path) if line["kind"] == "epoch"] == [{"Doze/BATCH_END": 3}] * 2


def test_each_warning_that_is_shown_is_told_once_and_shown_as_before(config, tmp_path):
    with pytest.warns(UserWarning, match="warned") as shown:
        train(config(WARNS % 2), tmp_path / "out")
    found = [(line["category"], line["message"]) for line in read(tmp_path) if line["kind"] == "warning"]
    assert found == [("UserWarning", "warned 0"), ("UserWarning", "warned 1")]
    assert len([warning for warning in shown if "warned" in str(warning.message)]) == 24


def test_a_warning_that_a_filter_leaves_out_is_not_told(config, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shower = warnings.showwarning
        train(config(WARNS % 1), tmp_path / "out")
        assert warnings.showwarning is shower
    assert "warning" not in {kind for kind, *_ in told(tmp_path)}


def test_after_two_hundred_warnings_it_says_that_the_rest_is_left_out(config, tmp_path):
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        train(config(WARNS % 300), tmp_path / "out")
    found = [line["message"] for line in read(tmp_path) if line["kind"] == "warning"]
    assert len(found) == 201
    assert found[199:] == ["warned 199", "there were more than 200 warnings; the others are left out"]


def test_a_run_that_is_refused_writes_nothing_into_the_folder_of_another(config, tmp_path):
    train(config(), tmp_path / "out")
    before = (tmp_path / "out" / "metrics.jsonl").read_bytes()
    with pytest.raises(Exception, match="out"):
        train(config(), tmp_path / "out")
    assert (tmp_path / "out" / "metrics.jsonl").read_bytes() == before


def test_a_full_disk_costs_lines_and_says_so_and_the_run_goes_on(config, tmp_path, monkeypatch):
    def append(lines, line):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(whole_lines.Lines, "_append", append)
    with (
        pytest.warns(DestinationWarning, match=r"^logger destination RunFiles can't write in .*No space"),
        pytest.warns(CheckpointWarning, match=r"is not whole: \d+ lines for metrics.jsonl are lost"),
    ):
        results = train(config(), tmp_path / "out")
    assert results.batches == 12


def test_a_second_attempt_drops_the_values_after_the_checkpoint_and_keeps_the_events(config, tmp_path, monkeypatch):
    with pytest.raises(ZeroDivisionError):
        train(config(CRASHES), tmp_path / "out")
    first = lines_in(tmp_path)
    monkeypatch.setattr(sys.modules["note"].Crash, "crashes", False)
    train(config(CRASHES.replace("seed: 7", "seed: 7, autoresume: true")), tmp_path / "out")
    steps = [line["step"] for line in lines_in(tmp_path) if "train/loss" in line]
    assert steps == [*range(12)]
    assert [line for line in first if line["kind"] != "values"] == read(tmp_path)[:4]
