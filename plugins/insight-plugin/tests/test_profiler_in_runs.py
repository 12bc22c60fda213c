"""What the profiler measures in whole runs, and how the command line switches it on."""

import json
import sys

import pytest
import torch
from click.testing import CliRunner
from parts import batches, trainer

from engine_core.callbacks.loss_guard import LossGuard
from engine_core.cli import main
from engine_core.errors import ArgumentError, NonFiniteLossWarning
from insight_plugin import Profiler

CONFIG = """
model: {target: "torch.nn:Linear", args: {in_features: 4, out_features: 3}}
data: {target: "own:loader"}
loss: {target: "torch.nn:CrossEntropyLoss"}
optimizer: {target: "torch.optim:SGD", args: {lr: 0.1}}
trainer: {max_duration: 2ep, device: cpu, seed: 1}
"""
OWN = """
import torch
from engine_core import Callback

def loader():
    return [(torch.zeros(2, 4), torch.zeros(2).long())] * 3

class Crash(Callback):
    def epoch_end(self, state, logger):
        raise ZeroDivisionError
"""


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Return a function that trains with some options, and gives its result."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "run.yaml").write_text(CONFIG)
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.delitem(sys.modules, "own", raising=False)
    return lambda *options: CliRunner().invoke(main, ["train", "run.yaml", "--quiet", "--out", "out", *options])


def test_the_span_of_an_exhausted_loader_is_closed_before_the_epoch_is(tmp_path):
    path = tmp_path / "trace.json"
    with trainer(batches(8), callbacks=Profiler(path)) as made:
        made.fit()
    spans = [span for span in json.loads(path.read_text()) if span["name"].startswith("event/")]
    ends = [span["ts"] + span["dur"] for span in spans if span["name"] == "event/dataloader"]
    (epoch,) = [span["ts"] + span["dur"] for span in spans if span["name"] == "event/epoch"]
    assert len(ends) == 2
    assert max(ends) < epoch


def test_a_step_that_is_skipped_has_no_span_of_the_optimizer():
    bad = (torch.full((4, 4), float("nan")), torch.zeros(4).long())
    made = trainer([*batches(4, 4), bad], callbacks=[LossGuard(), profiler := Profiler()])
    with made, pytest.warns(NonFiniteLossWarning):
        made.fit("1ep")
    timing = profiler.timing
    assert (timing["batches"], timing["spans"]["optimizer"]["count"]) == (3, 2)


def test_it_overwrites_nothing_but_its_own_files(tmp_path):
    file = tmp_path / "t.json"
    file.write_text('{"a": 1}')
    with pytest.raises(ArgumentError, match="is left as it is"):
        Profiler(file)
    assert file.read_text() == '{"a": 1}'
    file.unlink()
    for _ in range(2):
        with trainer(batches(8), callbacks=Profiler(file)) as made:
            made.fit()


def test_a_profiler_of_two_runs_has_the_sums_of_the_latter():
    profiler = Profiler()
    for count in (2, 3):
        with trainer(batches(*[8] * count), callbacks=profiler) as made:
            made.fit("1ep")
    assert profiler.timing["batches"] == 3


def test_train_writes_a_trace_and_implies_the_sums(train, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    done = train("--profile", "~/trace.json")
    assert done.exit_code == 0, done.output
    assert "event/fit" in {span["name"] for span in json.loads((tmp_path / "trace.json").read_text())}
    assert "event/fit" in json.loads((tmp_path / "out" / "results.json").read_text())["timing"]["spans"]


def test_train_adds_up_the_parts_of_a_step_the_optimizers_among_them(train, tmp_path):
    assert train("--timing").exit_code == 0
    timing = json.loads((tmp_path / "out" / "results.json").read_text())["timing"]
    assert timing["batches"] == timing["spans"]["event/batch"]["count"] == timing["spans"]["optimizer"]["count"] == 6


def test_a_run_that_did_not_finish_tells_how_long_its_parts_took(train, tmp_path):
    assert train("--timing", "--set", "callbacks+={target: 'own:Crash'}").exit_code == 1
    lines = map(json.loads, (tmp_path / "out" / "metrics.jsonl").read_text().splitlines())
    told = {line["kind"]: line for line in lines}
    assert [*told][-2:] == ["timing", "fail"]
    assert told["timing"]["spans"]["event/batch"]["count"] == 3


def test_a_trial_leaves_no_trace(train, tmp_path):
    done = train("--check", "--set", "callbacks+={name: profiler, args: {path: trace.json}}")
    assert (done.exit_code, (tmp_path / "trace.json").exists()) == (0, False)
