"""Processes that are asked to end: the latest checkpoint loads, and the run ends as the whole one did."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from engine_core.checkpoint import read_content, resolve

pytestmark = pytest.mark.full

PROGRAM = """
    import sys, time, warnings, torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    from engine_core import Callback, Trainer
    from engine_core.callbacks.checkpoint_saver import CheckpointSaver
    from engine_core.loggers.run_files import RunFiles

    class Slow(Callback):
        def batch_start(self, state, logger):
            print("batch", flush=True)
            time.sleep(0.01)
        def eval_batch_start(self, state, logger):
            print("eval", flush=True)
            time.sleep(0.01)
        def close(self, state, logger):
            print("closed", flush=True)

    torch.set_num_threads(1)
    folder = sys.argv[1]
    torch.manual_seed(3)
    inputs, targets = torch.randn(24, 4), torch.randint(3, (24,))
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
    trainer = Trainer(model, DataLoader(TensorDataset(inputs, targets), 4, shuffle=True), max_duration="4ep",
                      loss_fn=nn.CrossEntropyLoss(), optimizers=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
                      eval_dataloader=[(inputs[:5], targets[:5])] * 3, seed=1, progress_bar=False, device="cpu",
                      callbacks=[Slow(), CheckpointSaver(folder + "/checkpoints", "1ba")], loggers=RunFiles(folder),
                      autoresume=True)
    with trainer:
        trainer.fit()
    torch.save(trainer.state.model.state_dict(), folder + "/end.pt")
    print("end", flush=True)
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("program") / "program.py"
    path.write_text(textwrap.dedent(PROGRAM))
    return path


def started(script: Path, folder: Path) -> Any:
    return subprocess.Popen(
        [sys.executable, str(script), str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def to_the_end(script: Path, folder: Path) -> None:
    with started(script, folder) as process:
        out = process.stdout.read()
    assert process.returncode == 0
    assert out.endswith("end\n")


def lines(folder: Path) -> list[dict[str, Any]]:
    """Return what was logged, without times."""
    read = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in read]


@pytest.fixture(scope="module")
def whole(script: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    to_the_end(script, folder)
    return folder


def assert_ends_as(folder: Path, whole: Path) -> None:
    for name in ("checkpoints/ep4-ba24/model.safetensors", "metrics.csv"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes()
    assert lines(folder) == lines(whole)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT)])
@pytest.mark.parametrize("moment", ["batch", "eval"])
def test_a_run_that_is_asked_to_end_saves_first(
    number: int, code: int, moment: str, script: Path, whole: Path, tmp_path: Path
) -> None:
    with started(script, tmp_path) as process:
        while process.stdout.readline() != f"{moment}\n":
            pass
        process.send_signal(number)
        out = process.stdout.read()
    assert process.returncode == code
    assert out.splitlines()[-1] == "closed"
    assert out.count(f"{moment}\n") <= 1  # it was not continued
    content = read_content(resolve(tmp_path / "checkpoints"))
    assert content.state["awaited"] == ("epoch_checkpoint" if moment == "eval" else None)
    to_the_end(script, tmp_path)
    assert_ends_as(tmp_path, whole)


def test_a_finished_run_ends_at_once(script: Path, whole: Path) -> None:
    before = lines(whole)
    with started(script, whole) as process:
        out = process.stdout.read()
    assert process.returncode == 0
    assert out.splitlines() == ["closed", "end"]
    assert lines(whole) == before
