"""Two processes of torchrun, with gloo: what each saw, in a loop with Accelerate and in transformers' Trainer."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from .cases import BATCH, LEARNING_RATE, MOMENTUM, make_data, make_net, weights_of_words
from .transformers_runs import make_trainer

ROOT = Path(__file__).parents[2]
BUFFERS = ("running_mean", "running_var")
"""Of the rows of one process: DDP takes those of the first before each forward pass."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Let two processes run both programs, since it takes seconds to start them; they write here what they found."""
    folder = tmp_path_factory.mktemp("ranks")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [sys.executable, *torchrun, "-m", "tests.beside.two_ranks", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.fixture(scope="module")
def seen(folder):
    """Return what rank 0 and rank 1 saw in a loop with Accelerate."""
    return json.loads((folder / "accelerate.json").read_text())


@pytest.fixture(scope="module")
def ranks(folder):
    """Return what they saw in transformers' Trainer."""
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("how", ["surgery", "averaged", "accumulated", "chosen", "frozen", "uneven", "asked_by_one"])
def test_ranks_keep_the_same_weights(seen, how):
    first, second = (rank[how]["weights"] for rank in seen)
    assert first == second


def test_surgery_comes_before_the_model_is_wrapped(seen):
    first, second = (rank["surgery"] for rank in seen)
    assert first["wrapped"] == "DistributedDataParallel"
    assert len(first["weights"]) == 27  # 21 and those of squeeze_excite
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


@pytest.mark.parametrize("run", ["plain", "surgery", "chosen", "resumed"])
def test_ranks_of_transformers_keep_the_same_weights(run, ranks):
    first, second = (
        {name: weight for name, weight in rank[run]["weights"].items() if not name.endswith(BUFFERS)} for rank in ranks
    )
    assert first == second
    assert ranks[0][run]["wrapped"] == "DistributedDataParallel"
    assert [rank[run]["ranks"] for rank in ranks] == [[0, 2, "Ranks"], [1, 2, "Ranks"]]
    assert ranks[0][run]["clock"] == [0, 4, 32]


def test_surgery_comes_before_transformers_wraps_the_model(ranks):
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
def test_what_counts_in_transformers_and_the_clock_are_those_of_our_trainer(ranks, steps):
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
