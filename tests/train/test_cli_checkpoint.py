"""`engine-core checkpoint`, and training that is saved and resumed from the command line."""

import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from engine_core.cli import main

from . import shards
from .parts import same
from .test_resume import saved_runs


def call(*words: Any) -> Any:
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    saved_runs(tmp_path / "checkpoints", "1ep")
    return tmp_path / "checkpoints"


def test_show_prints_what_a_checkpoint_holds(folder: Path) -> None:
    shown = call("checkpoint", "show", folder)
    assert shown.exit_code == 0
    for text in (
        "ep3-ba12",
        "epoch 3, batch 12",
        "seed",
        str(torch.__version__),
        "Noise-2 std=0.2",
        "model.safetensors",
    ):
        assert text in shown.output
    manifest = json.loads(call("checkpoint", "show", folder / "ep1-ba4", "--json").output)
    assert manifest["clock"] == {"epoch": 1, "batch": 4}
    assert [entry["name"] for entry in manifest["algorithms"]] == ["Noise", "Noise-2"]
    assert manifest["order"] == {"after_dataloader": ["Noise-2", "Noise"]}


def test_verify_finds_what_is_wrong(folder: Path) -> None:
    assert "is as it was written" in call("checkpoint", "verify", folder).output
    (folder / "ep3-ba12" / "state.json").write_text("{}")
    found = call("checkpoint", "verify", folder)
    assert found.exit_code == 2
    assert "state.json' is not what was written" in found.output


def test_a_sharded_checkpoint_is_shown_and_verified_in_one_process(tmp_path: Path) -> None:
    folder = tmp_path / "ep0-ba3"
    described = {"run_name": "r", "clock": {"batch": 3}, "seed": 7, "versions": {}, "algorithms": [], "world_size": 4}
    shards.write(folder, shards.CONTENT.described(**described, parallel="fsdp"))
    kinds = ("average/model-*-of-00004.safetensors", "model-*-of-00004.safetensors", "state-*-of-00004.safetensors")
    expected = [
        *("run r", "clock batch 3", "seed 7", "processes 4 (fsdp)"),
        *(f"{kind} {sum(file.stat().st_size for file in folder.glob(kind))} bytes in 4 files" for kind in kinds),
        f"state.json {(folder / 'state.json').stat().st_size} bytes",
        "evaluated with the average of EMA",
    ]
    shown = call("checkpoint", "show", folder).output.splitlines()[1:]
    assert [" ".join(line.split()) for line in shown] == expected
    verified = call("checkpoint", "verify", folder).output
    assert verified == f"{folder} is as it was written: 5 weights, 4 tensors of state\n"
    (folder / "average" / "model-00003-of-00004.safetensors").write_text("")
    found = call("checkpoint", "verify", folder)
    assert found.exit_code == 2
    assert "average/model-00003-of-00004.safetensors' is not what was written" in found.output


def test_export_writes_the_weights_once(folder: Path, tmp_path: Path) -> None:
    to = tmp_path / "weights.safetensors"
    assert call("checkpoint", "export", folder, to).exit_code == 0
    weights = load_file(to)
    assert same(weights, load_file(folder / "ep3-ba12" / "model.safetensors"))
    again = call("checkpoint", "export", folder / "ep1-ba4", to)
    assert again.exit_code == 2
    assert "is there already and is left as it is" in again.output
    assert same(load_file(to), weights)
    assert call("checkpoint", "export", folder, tmp_path / "no" / "where").exit_code == 2


def test_export_does_not_damage_the_checkpoint(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = folder / "ep1-ba4"
    monkeypatch.chdir(checkpoint)
    (tmp_path / "link").symlink_to(checkpoint)
    for to in (checkpoint / "w.safetensors", "w.safetensors", tmp_path / "link" / "w.safetensors", "../ep1-ba4/w"):
        refused = call("checkpoint", "export", folder, to)
        assert refused.exit_code == 2
        assert "is in the checkpoint" in refused.output
    assert call("checkpoint", "verify", checkpoint).exit_code == 0
    assert call("checkpoint", "export", folder, folder / "w.safetensors").exit_code == 0


MODULE = """
    import time, torch
    from engine_core import Callback

    class Nap(Callback):
        def batch_start(self, state, logger):
            time.sleep(1.1 if state.timestamp.batch == 4 else 0)

    def net():
        return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(), torch.nn.Linear(8, 3))

    def loader():
        data = torch.utils.data.TensorDataset(torch.randn(24, 4), torch.randint(3, (24,)))
        return torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
"""
CONFIG = """
model: {target: "kept:net"}
data: {target: "kept:loader"}
eval_data: {target: "kept:loader"}
loss: {target: "torch.nn:CrossEntropyLoss"}
optimizer: {target: "torch.optim:AdamW", args: {lr: 0.1}}
trainer: {max_duration: 3ep, seed: 7, device: cpu}
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "kept.py").write_text(textwrap.dedent(MODULE))
    (tmp_path / "run.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "run.yaml"
    sys.modules.pop("kept", None)


def logged(folder: Path) -> Any:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    values = [line for line in lines if line["kind"] == "values"]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in values]


@pytest.mark.filterwarnings("ignore:fit.. has nothing to do")  # where it resumes a finished run
def test_a_run_is_saved_and_resumed_from_the_command_line(config: Path, tmp_path: Path) -> None:
    whole, other = tmp_path / "whole", tmp_path / "other"
    done = call("train", config, "--out", whole, "--checkpoint-every", "4ba", "--keep-last", 3)
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in (whole / "checkpoints").glob("ep*")) == [
        "ep1-ba12",
        "ep1-ba8",
        "ep2-ba16",
        "ep3-ba18",
    ]
    refused = call("train", config, "--out", whole, "--checkpoint-every", "5ba")
    assert refused.exit_code == 2
    assert "holds another run" in refused.output

    loaded = call(
        "train", config, "--out", other, "--checkpoint-every", "4ba", "--load", whole / "checkpoints" / "ep2-ba16"
    )
    assert loaded.exit_code == 0, loaded.output
    for name in ("model.safetensors", "state.safetensors"):
        assert same(*(load_file(run / "checkpoints" / "ep3-ba18" / name) for run in (whole, other)))
    assert logged(other) == logged(whole)[-len(logged(other)) :]

    before = logged(whole)
    again = call("train", config, "--out", whole, "--checkpoint-every", "4ba", "--autoresume")
    assert again.exit_code == 0, again.output
    assert logged(whole) == before


def test_a_checkpoint_holds_the_config_that_its_run_was_made_from(config: Path, tmp_path: Path) -> None:
    saving = ("--checkpoint-every", "4ba", "--max-duration", "4ba")
    assert call("train", config, "--out", tmp_path / "out", *saving).exit_code == 0
    manifest = json.loads(call("checkpoint", "show", tmp_path / "out" / "checkpoints", "--json").output)
    assert manifest["config"] == {
        "model": {"target": "kept:net"},
        "data": {"target": "kept:loader"},
        "eval_data": {"eval": {"target": "kept:loader"}},
        "loss": {"target": "torch.nn:CrossEntropyLoss"},
        "checkpoints": {"every": "4ba"},
        "optimizer": {"target": "torch.optim:AdamW", "args": {"lr": 0.1}},
        "trainer": {"max_duration": "4ba", "seed": 7, "device": "cpu", "run_name": "out"},
    }


def test_a_run_that_was_not_finished_is_resumed_in_its_folder(config: Path, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert call("train", config, "--out", whole, "--checkpoint-every", "4ba").exit_code == 0
    assert call("train", config, "--out", parts, "--checkpoint-every", "4ba").exit_code == 0
    (parts / "checkpoints" / "latest").write_text("ep2-ba16\n")  # as if it had been killed then
    (parts / "results.json").unlink()
    done = call("train", config, "--out", parts, "--checkpoint-every", "4ba", "--autoresume")
    assert done.exit_code == 0, done.output
    assert logged(parts) == logged(whole)
    assert (parts / "metrics.csv").read_text() == (whole / "metrics.csv").read_text()
    assert (parts / "results.json").exists()


def test_a_run_that_a_time_limit_pauses_has_no_results_and_can_be_resumed(config: Path, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    options = ("--checkpoint-every", "4ba", "--autoresume")
    assert call("train", config, "--out", whole, *options).exit_code == 0
    limited = tmp_path / "limited.yaml"
    limits = "callbacks: [{name: time_limit, args: {limit: 1sec}}, {target: 'kept:Nap'}]\n"
    limited.write_text(config.read_text() + limits)
    paused = call("train", limited, "--out", parts, *options)
    assert paused.exit_code == 75, paused.output
    assert "paused at batch 5: TimeLimit: 1sec have passed\n" in paused.output
    assert paused.output.splitlines()[-1] == (
        f"resume: main train {limited} --out {parts} --checkpoint-every 4ba --autoresume"
    )
    assert not (parts / "results.json").exists()
    assert call("train", config, "--out", parts, *options).exit_code == 0
    assert logged(parts) == logged(whole)
    assert (parts / "results.json").exists()


def test_autoresume_without_a_saver_is_refused(config: Path, tmp_path: Path) -> None:
    refused = call("train", config, "--autoresume", "--no-checkpoints", "--out", tmp_path / "out")
    assert refused.exit_code == 2
    assert "needs a CheckpointSaver among the callbacks" in refused.output
