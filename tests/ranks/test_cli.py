"""`engine-core train` under torchrun leaves the same files as without it, and says each thing once."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from engine_core import load_model
from engine_core.cli import main

pytestmark = [pytest.mark.ranks, pytest.mark.full]

MODULE = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def net():
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))

def rows(batch_size=8, shuffle=True):
    g = torch.Generator().manual_seed(0)
    parts = torch.randn(53, 6, generator=g), torch.randint(0, 4, (53,), generator=g)
    return DataLoader(TensorDataset(*parts), batch_size=batch_size, shuffle=shuffle)
"""
CONFIG = """
model: {target: "of_test_cli:net"}
data: {target: "of_test_cli:rows"}
eval_data: {target: "of_test_cli:rows", args: {batch_size: 20, shuffle: false}}
loss: {target: "torch.nn:CrossEntropyLoss"}
optimizer: {target: "torch.optim:SGD", args: {lr: 0.1, momentum: 0.9}}
algorithms: [ema]
trainer: {max_duration: 3ep, seed: 3}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("cli")
    (place / "of_test_cli.py").write_text(MODULE)
    (place / "config.yaml").write_text(CONFIG)
    ended = CliRunner().invoke(main, ["train", str(place / "config.yaml"), "--out", str(place / "one"), "--quiet"])
    assert ended.exit_code == 0, ended.output
    return place


def train(folder, out, *options):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, "-m", "engine_core", "train", "config.yaml", "--out", out, *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)


def names_in(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def weights(file):
    return {name: value.flatten().tolist() for name, value in load_file(file).items()}


def metrics_in(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    values = [row for row in rows if row["kind"] == "values"]
    return [{key: value for key, value in row.items() if "time" not in key and key != "seconds"} for row in values]


@pytest.fixture(scope="module", params=["ddp", "fsdp"])
def ran(folder, request):
    ended = train(folder, request.param, "--parallel", request.param)
    assert ended.returncode == 0, ended.stderr
    return request.param, ended


def test_a_run_leaves_the_same_files_and_prints_each_value_once(folder, ran):
    way, ended = ran
    one, two = folder / "one", folder / way
    checkpoint = "checkpoints/ep3-ba21"
    if way == "ddp":
        assert names_in(one) == names_in(two)
    else:
        whole = {f"{checkpoint}/{name}.safetensors" for name in ("model", "state", "average/model")}
        assert names_in(one) - names_in(two) == whole
    assert [pytest.approx(row, abs=1e-5) for row in metrics_in(one)] == metrics_in(two)
    for name in ("model.safetensors", "model-average.safetensors"):
        assert {k: pytest.approx(v, abs=5e-6) for k, v in weights(one / name).items()} == weights(two / name)
    results = [json.loads((each / "results.json").read_text()) for each in (one, two)]
    assert [result["batches"] for result in results] == [21, 21]
    assert results[0].keys() == results[1].keys()
    for manifest in (two / "manifest.json", two / checkpoint / "manifest.json"):
        described = json.loads(manifest.read_text())
        assert (described["world_size"], described["parallel"]) == (2, way)
    said = ended.stdout.splitlines()
    assert len(said) == len(set(said))
    assert f"model: {way}/model.safetensors" in said
    assert ended.stderr.splitlines()[0] == "model       Sequential"
    assert ended.stderr.count(f"ranks       2 ({way}): global batch 8 = 4 rows on each") == 1
    assert ended.stderr.count("epoch 3/3") == 1


def test_one_process_evaluates_and_loads_what_several_have_left(folder, ran, monkeypatch):
    way, _ = ran
    monkeypatch.chdir(folder)
    for command in (["eval", way, "--trust"], ["checkpoint", "verify", way], ["checkpoint", "show", way]):
        ended = CliRunner().invoke(main, command)
        assert ended.exit_code == 0, ended.output
    exported = Path(f"{way}.safetensors")
    assert CliRunner().invoke(main, ["checkpoint", "export", way, str(exported)]).exit_code == 0
    left, saved = (load_model(path, trust=True).state_dict() for path in (way, f"{way}/checkpoints"))
    for name, value in load_file(exported).items():
        assert torch.equal(value, left[name])
        assert torch.equal(value, saved[name])


def test_a_folder_that_is_taken_is_told_once_with_the_command_that_resumes(folder):
    ended = train(folder, "one")
    assert ended.returncode == 1
    (said,) = [line for line in ended.stderr.splitlines() if line.startswith("Error")]
    assert said.startswith("Error: 'one' holds this very run")
    resume = "train config.yaml --out one --autoresume"
    assert ended.stdout.splitlines() == [f"resume: torchrun --nproc-per-node 2 -m engine_core {resume}"]
    assert "exitcode: 2" in ended.stderr
