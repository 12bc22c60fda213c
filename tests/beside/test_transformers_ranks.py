"""Two processes, which torchrun starts and transformers joins: surgery, weights, draws, refusals."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from .cases import BATCH, weights_of_words
from .transformers_runs import make_trainer

ROOT = Path(__file__).parents[2]
BUFFERS = ("running_mean", "running_var")
"""Of the rows of one process: DDP takes those of the first before each forward pass."""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """Return what each of the two processes found."""
    folder = tmp_path_factory.mktemp("ranks")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [sys.executable, *torchrun, "-m", "tests.beside.transformers_rank", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("run", ["plain", "surgery", "chosen", "resumed"])
def test_ranks_keep_the_same_weights(run, ranks):
    first, second = (
        {name: weight for name, weight in rank[run]["weights"].items() if not name.endswith(BUFFERS)} for rank in ranks
    )
    assert first == second
    assert ranks[0][run]["wrapped"] == "DistributedDataParallel"
    assert [rank[run]["ranks"] for rank in ranks] == [[0, 2, "Ranks"], [1, 2, "Ranks"]]
    assert ranks[0][run]["clock"] == [0, 4, 32]


def test_surgery_comes_before_the_model_is_wrapped(ranks):
    added = ranks[0]["surgery"]["weights"].keys() - ranks[0]["plain"]["weights"].keys()
    assert any("squeeze_excite.excite" in name for name in added)


def test_two_processes_make_the_step_of_one(ranks, tmp_path):
    trainer = make_trainer(tmp_path, args={"max_steps": 4, "eval_strategy": "no"})
    trainer.train()
    alone = {name: weight.double().sum().item() for name, weight in trainer.model.state_dict().items()}
    assert trainer.args.per_device_train_batch_size == BATCH == 2 * 4
    for name in ("net.10.weight", "net.8.weight", "net.7.weight"):
        # BatchNorm sees the rows of each process alone
        assert ranks[0]["plain"]["weights"][name] == pytest.approx(alone[name], abs=0.05)


@pytest.mark.parametrize("steps", [1, 2])
def test_what_counts_and_the_clock_are_those_of_our_trainer(ranks, steps):
    weights, clock, losses = weights_of_words(8 * steps)
    for rank in ranks:
        theirs, their_clock, _ = rank[f"words {steps}"]
        assert theirs == pytest.approx(weights, rel=1e-5, abs=1e-7)
        assert tuple(their_clock) == clock
    assert ranks[0][f"words {steps}"][2] == pytest.approx(sum(losses) / len(losses), rel=1e-3)


def test_each_process_draws_its_own_for_each_row(ranks):
    assert ranks[0]["drawn"] != ranks[1]["drawn"]
    assert torch.tensor(ranks[0]["drawn"]).shape == torch.tensor(ranks[1]["drawn"]).shape == (4, 4)


def test_evaluations_are_of_all_rows(ranks):
    assert ranks[0]["evaluated"] == ranks[1]["evaluated"]


def test_what_processes_lack_is_refused_with_the_remedy(ranks):
    for rank in ranks:
        assert rank["refused"].startswith("UnsupportedError: SelectiveBackprop (sb-plugin ")
        assert rank["refused"].endswith("are averaged; give scope='rank'")
        assert "no freezing: DDP waits for the gradients of all parameters; don't set" in rank["unfound"]
