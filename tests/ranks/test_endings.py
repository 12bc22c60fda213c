"""What one rank is asked for, all do at the same batch; and torchrun's summary shows the failure of the first."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .starting import start

pytestmark = [pytest.mark.ranks, pytest.mark.full]

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]

FAILING = """
import os, time, torch
from engine_core import Callback, Trainer
class Slow(Callback):
    def batch_start(self, state, logger):
        if state.rank == 1 and state.timestamp.batch == 2:
            raise ValueError("boom")
    def close(self, state, logger):
        time.sleep(60 * state.rank)
model = torch.nn.Linear(2, 1)
with Trainer(model, [(torch.ones(4, 2), torch.ones(4, 1))] * 5, max_duration="2ep", loss_fn=torch.nn.MSELoss(),
             optimizers=torch.optim.SGD(model.parameters(), lr=0.1), callbacks=[Slow()], device="cpu") as trainer:
    trainer.fit()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return what the program has left, whose processes end by a signal."""
    folder = tmp_path_factory.mktemp("ending")
    ended = start(Path(__file__).parent / "ending.py", 2, str(folder))
    assert ended.rc == 1, ended.output
    return folder


@pytest.fixture(scope="module")
def ended(folder):
    """Return what each rank did in the cases of the program."""
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("stop", ["returned", 3, "ep0-ba3"]),
        ("pause", ["returned", 3, "ep0-ba3"]),
        ("SIGTERM", ["SystemExit(143)", 3, "ep0-ba3"]),
        ("SIGINT", ["KeyboardInterrupt('ended after batch 3')", 3, "ep0-ba3"]),
        ("eval SIGTERM", ["SystemExit(143)", 2, "ep0-ba2"]),
        ("eval stop", ["returned", 2, "ep0-ba2"]),
        ("fit_end SIGTERM", ["SystemExit(143)", 14, "ep2-ba14"]),
    ],
)
def test_all_ranks_end_at_the_batch_at_which_one_is_asked_to_and_it_is_saved(ended, how, expected):
    assert [rank[how] for rank in ended] == [expected, expected]


def test_a_run_has_its_files_before_any_rank_leaves_it(ended):
    model = ["model.safetensors"]
    expected = [["interrupted", model], ["paused", model], ["finished", [*model, "results.json"]]]
    assert [rank["runs"] for rank in ended] == [expected] * 2


def test_a_rank_that_ends_by_a_signal_leaves_another_the_time_to_write_the_checkpoint(folder):
    """torchrun ends all others as soon as one has ended."""
    assert (folder / "last-SIGTERM" / "latest").read_text().strip() == "ep0-ba3"


def test_a_trainer_that_has_raised_on_all_ranks_says_that_a_new_one_is_needed_and_another_run_follows(ended):
    said = "ClosedEngineError: an exception has ended this run on all ranks; make a new Trainer"
    for rank in ended:
        assert rank["spent"][0].startswith("ArgumentError: ")
        assert rank["spent"][1:] == [said] * 3
        assert rank["again"][:2] == ["returned", 14]


def test_the_summary_of_torchrun_has_the_first_failure_though_that_rank_lives_on_in_close(tmp_path):
    program = tmp_path / "failing.py"
    program.write_text(FAILING)
    to_one = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run([*TORCHRUN, str(program)], **to_one, timeout=100, check=False)
    cause = done.stdout.partition("Root Cause")[2]
    assert done.returncode == 1
    assert "rank      : 1" in cause
    assert 'raise ValueError("boom")' in cause
    assert "RankError: rank 0 ends because rank 1 failed: ValueError: boom" in done.stdout
