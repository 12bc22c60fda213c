"""A loop with Accelerate on two processes of torchrun, with gloo: what each of them saw."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from .cases import LEARNING_RATE, MOMENTUM, make_data, make_net, weights_of_words

PROGRAM = Path(__file__).with_name("accelerate_ranks.py")
ROOT = PROGRAM.parents[2]


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """Return what rank 0 and rank 1 returned."""
    out = tmp_path_factory.mktemp("ranks") / "out.json"
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    ended = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", PROGRAM, out],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(out.read_text())


@pytest.mark.parametrize("how", ["surgery", "averaged", "accumulated", "chosen", "frozen", "uneven", "asked_by_one"])
def test_ranks_keep_the_same_weights(seen, how):
    first, second = (rank[how]["weights"] for rank in seen)
    assert first == second


def test_surgery_comes_before_the_model_is_wrapped(seen):
    first, second = (rank["surgery"] for rank in seen)
    assert first["wrapped"] == "DistributedDataParallel"
    assert len(first["weights"]) == 20  # 14 and those of squeeze_excite
    assert first["averages"] == second["averages"] != []
    assert first["seed"] == second["seed"]  # though none was given


def test_draws_for_rows_differ(seen):
    first, second = (rank["surgery"]["cut"] for rank in seen)
    assert len(first) == 2
    assert all(a != b for a, b in zip(first, second, strict=True))


def test_state_says_which_process_it_is_and_shares_nothing(seen):
    assert [rank["surgery"]["ranks"] for rank in seen] == [[0, 2, 1], [1, 2, 1]]


@pytest.mark.parametrize(("how", "steps"), [("averaged", 1), ("accumulated", 2)])
def test_gradients_are_those_of_all_processes(seen, how, steps):
    """Each batch on its own, as BatchNorm sees it; the label smoothing of torch is the algorithm's."""
    net = make_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    batches = [*torch.utils.data.DataLoader(make_data(rows=32), batch_size=4)]
    count = 2 * steps
    for start in range(0, 8, count):
        optimizer.zero_grad()
        for inputs, targets, _ in batches[start : start + count]:
            (F.cross_entropy(net(inputs), targets, label_smoothing=0.1) / count).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
    sums = [p.detach().double().sum().item() for p in net.parameters()]
    assert seen[0][how]["weights"] == pytest.approx(sums, rel=1e-5, abs=1e-6)
    assert [rank[how]["clock"] for rank in seen] == [[1, 8 // count, 32]] * 2


@pytest.mark.parametrize(("how", "steps"), [("words", 1), ("words of two", 2)])
def test_what_counts_and_the_clock_are_those_of_our_trainer(seen, how, steps):
    weights, clock, _ = weights_of_words(8 * steps)
    assert seen[0][how]["weights"] == pytest.approx(weights, rel=1e-5, abs=1e-7)
    assert [tuple(rank[how]["clock"]) for rank in seen] == [clock] * 2


def test_rows_are_chosen_in_each_process_only(seen):
    assert seen[0]["refused"]["selective_backprop"] == (
        "no global_batch: gradients are averaged over processes, whatever rows each has kept; choose in each with "
        "scope='rank'"
    )
    assert [rank["chosen"]["kept"] for rank in seen] == [[2] * 4] * 2


def test_freezing_needs_a_ddp_that_looks_for_parameters_without_gradients(seen):
    assert seen[0]["refused"]["layer_freezing"] == (
        "no freezing: DDP waits for all gradients; give DistributedDataParallelKwargs(find_unused_parameters=True)"
    )
    assert not all(seen[0]["frozen"]["trains"])
    assert any(seen[0]["frozen"]["trains"])


def test_what_one_process_asks_for_all_do(seen):
    assert [rank["asked_by_one"]["skipped"] for rank in seen] == [True, True]
    assert [rank["asked_by_one"]["clock"] for rank in seen] == [[0, 3, 24]] * 2
    assert [rank["asked_by_one"]["stops"] for rank in seen] == [True, True]


def test_loaders_are_dealt_by_accelerate(seen):
    """13 rows are 4 batches, of which each process gets two; the last ones are filled up with rows from the first."""
    assert [rank["uneven"]["clocks"] for rank in seen] == [[[1, 2, 16, 2], [1, 2, 14, 2]]] * 2


def test_a_resumed_run_is_the_uninterrupted_one(seen):
    assert all(rank["resumed"]["weights"] == rank["resumed"]["whole"] for rank in seen)
