"""A finished run is explained and compared by what it wrote, where its plugin is not installed."""

import json
import os
import subprocess
import sys

import pytest
import torch
from click.testing import CliRunner

from engine_core.cli import main
from engine_core.config import load_config
from engine_core.explain import explain_config
from engine_core.manifest import read_manifest

torch.set_num_threads(1)

MODULE = """
    from engine_core import Algorithm, AlgorithmMetadata, algorithm_pass, passes

    class Nod(Algorithm):
        metadata = AlgorithmMetadata(events=("init", "after_loss"), before=("rest",))
        match = lambda self, event, state: False
        may_rest = lambda self, state: True
        apply = lambda self, *arguments: None

    class Rest(Nod):
        metadata = AlgorithmMetadata(events=("after_loss",))

    @algorithm_pass(stage="placement", events=("init",))
    def nod_first(algorithms, event):
        return passes.sort_to_front(algorithms, Nod)
"""
CONFIG = """
model: {target: "torch.nn:Linear", args: {in_features: 2, out_features: 1}}
data: {target: "nod_data:loader"}
loss: {target: "torch.nn.functional:mse_loss"}
optimizer: {target: "torch.optim:SGD", args: {lr: 0.1}}
trainer: {max_duration: 1ba, seed: 1}
algorithms: [rest, nod]
"""


@pytest.fixture
def trained(install, tmp_path, monkeypatch):
    """Return a folder with a config and a run of it, `a`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "nod_data.py").write_text(
        "import torch\n\ndef loader():\n    return [(torch.ones(4, 2), torch.ones(4, 1))]\n"
    )
    (tmp_path / "run.yaml").write_text(CONFIG)
    points = {
        "algorithms": {name: f"nod_module:{name.capitalize()}" for name in ("nod", "rest")},
        "passes": {"nod_first": "nod_module:nod_first"},
    }
    install("nod-plugin", points, {"nod_module": MODULE}, version="0.6")
    call("train", "run.yaml", "--out", "a")
    return tmp_path


def call(*arguments):
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    return result.output


def elsewhere(folder, *arguments):
    """Run a command in a separate Python, where the plugin is not installed, and which fails if it needs torch."""
    (folder / "torch.py").write_text("raise ImportError('torch')")
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-W", "error", "-m", "engine_core", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_a_run_is_explained_and_compared_where_its_plugin_is_gone(trained):
    assert read_manifest(trained / "a").explanation() == explain_config(load_config("run.yaml"))
    done = elsewhere(trained, "explain", "a")
    declared = "declared by Nod (nod-plugin 0.6, before='rest')"
    assert (done.stderr, [line for line in done.stdout.splitlines() if line]) == (
        "",
        [
            *("init: Nod runs alone", "after_loss", f"  1. Nod   before Rest: {declared}"),
            f"  2. Rest  after Nod: {declared}",
            *("skipped", "  pass 'nod_first' of nod-plugin 0.6: runs at init only"),
        ],
    )
    pair = json.loads(call("explain", "a/manifest.json", "--why", "nod", "rest", "--json"))
    assert [(told["event"], told["first"], told["why"]) for told in pair] == [("after_loss", "Nod", declared)]
    call("train", "run.yaml", "--out", "b")
    same = elsewhere(trained, "diff", "a", "b")
    assert (same.returncode, same.stdout, same.stderr) == (0, "", "")


def test_a_pass_that_breaks_a_declared_order_stops_the_run_before_it_begins(trained, install):
    text = """
        from engine_core import Callback, algorithm_pass

        class Turn(Callback):
            pass

        @algorithm_pass(stage="placement")
        def turn_round(algorithms, event):
            return algorithms[::-1]
    """
    points = {"callbacks": {"turn": "turn_module:Turn"}, "passes": {"turn_round": "turn_module:turn_round"}}
    install("turn-plugin", points, {"turn_module": text})
    (trained / "turned.yaml").write_text(CONFIG + "callbacks: [turn]")
    result = CliRunner().invoke(main, ["train", "turned.yaml", "--out", "turned"])
    assert (result.exit_code, (trained / "turned").exists()) == (2, False)
    assert result.output == (
        "Error: pass 'turn_round' of turn-plugin puts Rest before Nod at AFTER_LOSS, but "
        "Nod (nod-plugin 0.6, before='rest') declares the opposite; disable that pass or fix its distribution\n"
    )
