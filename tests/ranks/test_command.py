"""`engine-core train` under torchrun: the one start of several processes in the quick ring."""

import json
import subprocess
import sys

import pytest

from engine_core_report import read_run, render

pytestmark = pytest.mark.ranks
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def test_the_example_trains_on_two_processes_and_leaves_one_run(tmp_path):
    pytest.importorskip("sklearn")
    command = [*TORCHRUN, "-m", "engine_core", "train", "--example", "digits", "--max-duration", "2ba"]
    to_one = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    ended = subprocess.run(command, cwd=tmp_path, **to_one, timeout=120, check=False)
    assert ended.returncode == 0, ended.stdout
    (folder,) = (tmp_path / "runs").iterdir()
    written = json.loads((folder / "manifest.json").read_text())
    results = json.loads((folder / "results.json").read_text())
    assert (written["world_size"], written["parallel"]) == (2, "ddp")
    names = [path.name for path in sorted(folder.glob("checkpoints/*/*"))]
    assert names == ["manifest.json", "model.safetensors", "state.json", "state.safetensors"]
    assert results["samples"] == 128  # two global batches
    assert ended.stdout.count("results in runs/") == 1
    run = read_run(folder)
    assert (run.status, run.has_ended, run.steps, run.warnings) == ("finished", True, 2, [])
    assert len(run.series["train/loss"].y) == 2
    assert "2 processes (ddp)" in render([run])
