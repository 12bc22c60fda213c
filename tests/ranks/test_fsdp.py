"""FSDP is the run on one process too, for whatever it doesn't refuse; DistributedDataParallel gets what plugins say."""

import math

import pytest
import torch

from . import sharded
from .starting import written_by

OF_WEIGHTS, OF_LOGS = 2e-6, 1e-5
BFLOAT16 = "loop/bfloat16"
IN_TORCHS_COMPILER = "ignore:The .grad attribute of a Tensor:UserWarning"
pytestmark = [pytest.mark.ranks, pytest.mark.full, pytest.mark.filterwarnings(IN_TORCHS_COMPILER)]


def together():
    """Return what each case gave on two processes, all from one start."""
    return written_by(sharded.__file__, 2)


def largest_difference(many, one):
    """Return the largest difference of tensors by name."""
    assert [*many] == [*one]
    pairs = ((torch.tensor(many[name]), torch.tensor(value)) for name, value in one.items())
    return max((there - here).abs().max().item() for there, here in pairs)


def distance(these, those):
    """Return the Euclidean distance of all weights together."""
    assert [*these] == [*those]
    pairs = ((torch.tensor(these[name]), torch.tensor(value)) for name, value in those.items())
    return math.sqrt(sum((here - there).double().square().sum().item() for here, there in pairs))


def assert_whole(many, one):
    assert many["alike"] and many["is_the_model"] and many["is_sharded"]
    assert many["saved_wrongly"] == one["saved_wrongly"] == 0


@pytest.mark.parametrize("name", [name for name in sharded.NAMES if name != BFLOAT16])
def test_weights_logs_and_saves_are_those_of_one_process(name):
    many = together()[name]
    one = sharded.run(name, **({"microbatch_size": 4} if name.startswith("mixed/") else {}))
    assert largest_difference(many["weights"], one["weights"]) <= OF_WEIGHTS
    assert [step for step, _ in many["logs"]] == [step for step, _ in one["logs"]]
    for (_, there), (_, here) in zip(many["logs"], one["logs"], strict=True):
        assert largest_difference(there, here) <= OF_LOGS
    assert_whole(many, one)


def test_bfloat16_costs_no_more_precision_on_two_processes_than_on_one():
    """How two runs in bfloat16 round depends on the processor's kernels, so both are held against float32."""
    many, one, exact = together()[BFLOAT16], sharded.run(BFLOAT16), sharded.run("loop/plain")
    assert distance(many["weights"], exact["weights"]) <= 1.25 * distance(one["weights"], exact["weights"])
    assert [step for step, _ in many["logs"]] == [step for step, _ in exact["logs"]]
    lost, lost_by_one = (
        max(largest_difference(there, here) for (_, there), (_, here) in zip(run["logs"], exact["logs"], strict=True))
        for run in (many, one)
    )
    assert lost <= 2 * lost_by_one
    assert_whole(many, one)


def test_a_rank_repeats_a_microbatch_for_the_others_without_its_events():
    """Of 5 rows, in microbatches of 2, rank 0 has two microbatches and rank 1 has one."""
    for name in ("loop/microbatches", "sb/carried in microbatches"):
        first, second = together()[name]["counts"]
        assert first["before_forward"] == first["after_backward"] > second["before_forward"]
        assert second["before_forward"] == second["after_backward"]


@pytest.mark.parametrize("name", sharded.SAME_LAW)
def test_what_draws_for_each_row_trains(name):
    result = together()[f"law/{name}"]
    assert result["alike"]
    assert all(math.isfinite(value) for _, metrics in result["logs"] for value in metrics.values())


def test_what_fsdp_does_not_offer_is_refused_by_name_before_the_model_changes():
    refused = together()["refused"]
    assert refused.keys() == {*sharded.REFUSED, "channels_last"}
    for name, (error, is_unchanged) in refused.items():
        assert name.replace("_", "") in error.lower() and "can't work in fsdp: no " in error
        assert is_unchanged


def test_an_algorithm_may_leave_parameters_without_a_gradient_on_some_ranks():
    many, one = together()["with_unused"], sharded.with_unused()
    for size in ("None", "1"):
        assert largest_difference(many[size], one[size]) <= OF_WEIGHTS


def test_the_policy_of_mixed_precision_reaches_torch():
    found = together()["with_mixed_precision"]
    assert (found["forward"], found["weights"]) == (["torch.bfloat16"], ["torch.float32"])
    assert math.isfinite(found["loss"])


def test_running_statistics_are_the_mean_of_the_ranks_and_all_other_buffers_those_of_rank_0():
    ranks = together()["with_batch_norm"]["ranks"]
    own, seen = ([rank[part] for rank in ranks] for part in ("own", "seen"))
    assert own[0]["1.running_mean"] != own[1]["1.running_mean"]
    for name in ("1.running_mean", "1.running_var"):
        mean = [(a + b) / 2 for a, b in zip(own[0][name], own[1][name], strict=True)]
        assert seen[0][name] == seen[1][name] == pytest.approx(mean)
    for name in ("1.num_batches_tracked", "queue"):
        assert own[1][name] != own[0][name]
        assert seen[0][name] == seen[1][name] == own[0][name]


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_averages_of_running_statistics_are_the_mean_of_the_ranks_when_evaluated_saved_or_left(way):
    first, second = together()["with_averaged_batch_norm"][way]
    assert first["seen"] == second["seen"]
    assert first["seen"] != together()["with_batch_norm"]["ranks"][0]["seen"]
    assert first["saved"] == second["saved"]
    assert first["saved"]["queue"] == first["own"]["queue"]
    for name, values in first["seen"].items():
        assert first["left"][name] == second["left"][name] == pytest.approx(values)


def test_batch_norm_is_warned_of_once():
    told = [rank["told"] for rank in together()["with_batch_norm"]["ranks"]]
    assert [len(each) for each in told] == [1, 0]
    assert "torch.nn.SyncBatchNorm.convert_sync_batchnorm" in told[0][0]
