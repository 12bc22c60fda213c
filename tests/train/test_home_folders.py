"""A path that begins with `~` is in the home folder, wherever a user gives one."""

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from engine_core.arguments import path_of
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.cli import main
from engine_core.config import load_config
from engine_core.loggers.run_files import RunFiles
from engine_core.run import evaluate, load_model, train
from engine_core_author.scaffold import create_plugin
from engine_core_report import read_run, write_report
from engine_core_report.diff import compare

from .parts import trainer

CONFIG = """
model: {target: "torch.nn:Linear", args: {in_features: 64, out_features: 10}}
loss: {target: "torch.nn:CrossEntropyLoss"}
optimizer: {target: "torch.optim:SGD", args: {lr: 0.1}}
data: {target: "home_parts:loader"}
eval_data: {target: "home_parts:loader"}
trainer: {max_duration: 1ba, device: cpu}
"""
PARTS = """
import torch

def loader():
    return [(torch.ones(4, 64), torch.zeros(4, dtype=torch.long))]
"""


def command(*arguments):
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output


def fits(**settings):
    with trainer(**settings) as run:
        run.fit()


WRITES = {
    "savers": (lambda: fits(callbacks=CheckpointSaver("~/saved")), "saved"),
    "loggers": (lambda: fits(loggers=RunFiles("~/logged")), "logged"),
    "a config's run": (lambda: train(load_config("~/config.yaml"), "~/made"), "made"),
    "train --out": (lambda: command("train", "~/config.yaml", "--out=~/made"), "made"),
    "a report": (lambda: write_report([read_run("~/run")], "~/page.html"), "page.html"),
    "report --out": (lambda: command("report", "~/run", "--out=~/page.html"), "page.html"),
    "export": (lambda: command("checkpoint", "export", "~/run", "~/weights.safetensors"), "weights.safetensors"),
    "a plugin": (lambda: create_plugin("my-plugin", "~"), "my-plugin"),
    "new --dir": (lambda: command("plugins", "new", "my-plugin", "--dir=~"), "my-plugin"),
}
READS = {
    "load_path": lambda: fits(model=NET, load_path="~/run/checkpoints", load_weights_only=True, data=DATA),
    "load_model": lambda: load_model("~/run", NET),
    "evaluate": lambda: evaluate("~/run", load_config("~/config.yaml")),
    "eval": lambda: command("eval", "~/run", "--config=~/config.yaml"),
    "explain": lambda: command("explain", "~/config.yaml"),
    "explain a run": lambda: command("explain", "~/run"),
    "compare": lambda: compare("~/run", "~/run"),
    "diff": lambda: command("diff", "~/run", "~/run"),
    "runs": lambda: command("runs", "~/run"),
    "checkpoint show": lambda: command("checkpoint", "show", "~/run"),
}


NET, DATA = torch.nn.Linear(64, 10), [(torch.ones(4, 64), torch.zeros(4, dtype=torch.long))]


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Return a home folder with a config and a run, not the current folder."""
    for name in ("home", "elsewhere"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.syspath_prepend(tmp_path / "home")
    (tmp_path / "home" / "home_parts.py").write_text(PARTS, encoding="utf-8")
    (tmp_path / "home" / "config.yaml").write_text(CONFIG, encoding="utf-8")
    train(load_config(tmp_path / "home" / "config.yaml"), tmp_path / "home" / "run")
    return tmp_path / "home"


def test_it_is_written_in_the_home_folder(home):
    for what, (write, name) in WRITES.items():
        write()
        assert (home / name).exists() and not (Path.cwd() / "~").exists(), what
        (home / name).rename(home / what)


def test_it_is_read_from_the_home_folder(home):
    for read in READS.values():
        read()
    assert not (Path.cwd() / "~").exists()


def test_a_home_that_is_not_there_is_a_folder_of_this_name():
    assert path_of("~nobody-at-all/runs") == Path("~nobody-at-all/runs")
