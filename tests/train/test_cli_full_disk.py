"""`engine-core train` on a disk that is full for a while: the results are those of the whole run, or it stops."""

import json
import os
import re
import subprocess
import sys

import pytest

MODULE = """
import os, resource, torch

def net():
    return torch.nn.Linear(4, 3)

def loader(batches):
    torch.manual_seed(1)
    return [(torch.randn(8, 4), torch.randint(3, (8,))) for _ in range(batches)]

class FullInTheSecondEpoch(list):
    epochs = 0

    def __init__(self, batches):
        super().__init__(loader(batches))

    def __iter__(self):
        self.epochs += 1
        room = os.path.getsize("out/metrics.jsonl") if self.epochs == 2 else resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
        return super().__iter__()
"""
CONFIG = """
model: {target: "full:net"}
data: {target: "full:FullInTheSecondEpoch", args: {batches: 8}}
eval_data: {target: "full:loader", args: {batches: 2}}
loss: {target: "torch.nn:CrossEntropyLoss"}
optimizer: {target: "torch.optim:SGD", args: {lr: 0.1}}
trainer: {max_duration: 3ep, seed: 7}
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits the size of files as Linux does")


def train(folder, **environment):
    (folder / "full.py").write_text(MODULE)
    (folder / "run.yaml").write_text(CONFIG)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(folder), **environment}
    command = [sys.executable, "-B", "-m", "engine_core", "train", "run.yaml", "--out", "out"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_results_and_files_are_those_of_the_whole_run(tmp_path):
    done = train(tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    latest = {name: value for line in lines for name, value in line.items()}
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert {line["step"] for line in lines} == set(range(25))
    for name in ("train/loss", "eval/loss"):
        assert results[name] == latest[name]
    told = re.findall(r"warning: (\w+ \w+)", done.stderr)
    assert told[:2] == ["logger destination", "no checkpoint"]
    assert told[2:] in ([], ["2 checkpoints"])  # that of the first epoch may still be written when the disk is full


@pytest.mark.full
def test_an_environment_variable_makes_a_logger_that_fails_stop_the_command(tmp_path):
    done = train(tmp_path, PYTHONWARNINGS="error:logger destination")
    assert done.returncode == 1
    assert "DestinationWarning: logger destination RunFiles can't write in 'out'" in done.stderr
    assert not (tmp_path / "out" / "results.json").exists()
