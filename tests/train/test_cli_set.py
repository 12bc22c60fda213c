"""`engine-core train --set`: what changed is trained and recorded, and an option that says otherwise overrides it."""

import json

import pytest
from click.testing import CliRunner

from engine_core.cli import main
from engine_core.manifest import read_manifest

MODULE = """
    import torch
    from engine_core import Algorithm

    def net(width=4):
        return torch.nn.Linear(4, 3)

    def loader(batches=2):
        return [(torch.randn(8, 4), torch.randint(3, (8,))) for _ in range(batches)]

    class Hum(Algorithm):
        match = lambda self, event, state: False
        apply = lambda self, event, state, logger: None
        may_rest = lambda self, state: True

        def __init__(self, volume=1):
            if volume < 0:
                raise ValueError("too quiet")
            self.volume = volume
"""
CONFIG = """
model: {target: "tune:net"}
data: {target: "tune:loader"}
loss: {target: "torch.nn:CrossEntropyLoss"}
optimizer: {target: "torch.optim:SGD", args: {lr: 0.1}}
trainer: {max_duration: 1ep, seed: 7}
"""


@pytest.fixture
def run(install, tmp_path, monkeypatch):
    """Return `run(*arguments)`, the command in an empty folder with `run.yaml`."""
    monkeypatch.chdir(tmp_path)
    install("tune-plugin", {"algorithms": {"hum": "tune:Hum"}}, {"tune": MODULE})
    (tmp_path / "run.yaml").write_text(CONFIG)
    return lambda *arguments: CliRunner().invoke(main, ["train", "run.yaml", "--out", "out", *arguments])


def test_what_was_set_is_trained_with_and_recorded_as_given(run, tmp_path):
    given = ["optimizer.args.lr=1e-3", "algorithms+=hum", "algorithms[hum].args.volume=3", "trainer.seed=null"]
    result = run(*(word for text in given for word in ("--set", text)), "--seed", "5", "--max-duration", "1ba")
    assert result.exit_code == 0, result.output
    manifest = read_manifest(tmp_path / "out")
    assert manifest.config["trainer"]["seed"] == 5
    assert manifest.overrides == tuple(given)
    assert manifest.config["optimizer"]["args"] == {"lr": 0.001}
    assert manifest.config["algorithms"] == [{"name": "hum", "args": {"volume": 3}}]
    lines = map(json.loads, (tmp_path / "out" / "metrics.jsonl").read_text().splitlines())
    first = next(line for line in lines if line["kind"] == "values")
    assert first["train/lr/0"] == 0.001


def test_a_manifest_from_before_has_no_overrides(run, tmp_path):
    assert run("--max-duration", "1ba").exit_code == 0
    file = tmp_path / "out" / "manifest.json"
    content = json.loads(file.read_text())
    assert content.pop("overrides") == []
    file.write_text(json.dumps(content))
    assert read_manifest(file).overrides == ()


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (
            ["model.args.widht=8"],
            "--set model.args.widht=8: model.args.widht: net has no argument 'widht'; did you mean 'width'?",
        ),
        (
            ["loss.target=torch.nn:L2Loss"],
            "run.yaml:4 with --set loss.target=torch.nn:L2Loss: loss: 'torch.nn' has no attribute 'L2Loss'; did you",
        ),
        (
            ["optimizer.args.lr=-1"],
            "run.yaml:5 with --set optimizer.args.lr=-1: optimizer: SGD: Invalid learning rate: -1",
        ),
        (["algorithms+=hun"], "--set algorithms+=hun: algorithms[0]: 'hun' is not among the installed algorithms"),
        (
            ["algorithms+=hum", "algorithms[hum].args.volume=-3"],
            "--set algorithms+=hum with --set algorithms[hum].args.volume=-3: algorithms[0]: Hum: too quiet",
        ),
    ],
)
def test_what_is_set_is_checked_like_the_file_when_it_is_made(run, texts, said):
    result = run(*(word for text in texts for word in ("--set", text)))
    assert result.exit_code == 2
    assert result.output.startswith(f"Error: {said}")
