"""`engine-core checkpoint`, and training that is saved and resumed from the command line."""

import json

import pytest
import torch
import yaml
from click.testing import CliRunner
from safetensors.torch import load_file

from engine_core.cli import main

from . import shards
from .leaving import CONFIG, cli, train
from .parts import same
from .test_resume import saved_runs

__all__ = ["cli", "train"]


def call(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.fixture
def folder(tmp_path):
    saved_runs(tmp_path / "checkpoints", "1ep")
    return tmp_path / "checkpoints"


def test_show_prints_what_a_checkpoint_holds(folder):
    shown = call("checkpoint", "show", folder)
    assert shown.exit_code == 0
    texts = ["ep3-ba12", "epoch 3, batch 12", "seed", str(torch.__version__), "Noise-2 std=0.2", "model.safetensors"]
    assert [text for text in texts if text not in shown.output] == []
    manifest = json.loads(call("checkpoint", "show", folder / "ep1-ba4", "--json").output)
    assert manifest["clock"] == {"epoch": 1, "batch": 4}
    assert [entry["name"] for entry in manifest["algorithms"]] == ["Noise", "Noise-2"]
    assert manifest["order"] == {"after_dataloader": ["Noise-2", "Noise"]}


def test_a_sharded_checkpoint_is_shown_and_verified_in_one_process(tmp_path):
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


def test_export_writes_the_weights_once_and_not_into_the_checkpoint(folder, tmp_path, monkeypatch):
    to, checkpoint = tmp_path / "weights.safetensors", folder / "ep1-ba4"

    def refused(source, to):
        done = call("checkpoint", "export", source, to)
        assert done.exit_code == 2
        return done.output

    assert call("checkpoint", "export", folder, to).exit_code == 0
    weights = load_file(to)
    assert same(weights, load_file(folder / "ep3-ba12" / "model.safetensors"))
    assert "is there already and is left as it is" in refused(checkpoint, to)
    assert same(load_file(to), weights)
    refused(folder, tmp_path / "no" / "where")
    monkeypatch.chdir(checkpoint)
    (tmp_path / "link").symlink_to(checkpoint)
    for to in (checkpoint / "w.safetensors", "w.safetensors", tmp_path / "link" / "w.safetensors", "../ep1-ba4/w"):
        assert "is in the checkpoint" in refused(folder, to)
    assert call("checkpoint", "verify", checkpoint).exit_code == 0
    assert call("checkpoint", "export", folder, folder / "w.safetensors").exit_code == 0


def logged(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    values = [line for line in lines if line["kind"] == "values"]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in values]


def test_a_run_is_saved_and_resumed_from_the_command_line(train, tmp_path):
    def saving(*words):
        done = train("--checkpoint-every", "3ba", *map(str, words))
        assert done.exit_code == 0, done.output

    whole, other, parts = (tmp_path / name for name in ("whole", "other", "parts"))
    saving("--out", whole, "--keep-last", 2)
    assert sorted(path.name for path in (whole / "checkpoints").glob("ep*")) == ["ep0-ba3", "ep1-ba6", "ep2-ba8"]
    refused = train("--out", "whole", "--checkpoint-every", "5ba")
    assert refused.exit_code == 2
    assert "holds another run" in refused.output

    saving("--out", other, "--load", whole / "checkpoints" / "ep1-ba6")
    for name in ("model.safetensors", "state.safetensors"):
        assert same(*(load_file(run / "checkpoints" / "ep2-ba8" / name) for run in (whole, other)))
    assert logged(other) == logged(whole)[-len(logged(other)) :]

    saving("--out", parts)
    (parts / "checkpoints" / "latest").write_text("ep1-ba6\n")  # as if it had been killed then
    (parts / "results.json").unlink()
    saving("--out", parts, "--autoresume")
    assert logged(parts) == logged(whole)
    assert (parts / "metrics.csv").read_text() == (whole / "metrics.csv").read_text()
    assert (parts / "results.json").exists()


def test_a_checkpoint_holds_the_config_that_its_run_was_made_from(train):
    assert train("--checkpoint-every", "4ba", "--max-duration", "4ba").exit_code == 0
    config = json.loads(call("checkpoint", "show", "out/checkpoints", "--json").output)["config"]
    given = yaml.safe_load(CONFIG)
    trainer = {**given["trainer"], "max_duration": "4ba", "run_name": "out"}
    assert config == {**given, "trainer": trainer, "checkpoints": {"every": "4ba"}}
