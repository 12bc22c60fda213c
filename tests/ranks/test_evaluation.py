"""The rows that ranks train on, evaluations, predictions and what callbacks show, on several processes as on one."""

import itertools
import json
import warnings

import pytest

from engine_core.ranks import Ranks, share

from . import dealing, evaluating
from .starting import written_by

SIZE = 3
pytestmark = [pytest.mark.full, pytest.mark.ranks]


@pytest.fixture(scope="module")
def found():
    """Return what each rank found."""
    return written_by(evaluating.__file__, SIZE)


@pytest.fixture(scope="module")
def alone():
    """Return what one process finds, as JSON brings it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "No (positive|negative) samples", UserWarning)  # torchmetrics', of few rows
        return json.loads(json.dumps(evaluating.found_by([])))


def like(expected):
    """Compare floats as approximations, in lists of lists too."""
    if isinstance(expected, dict):
        return {name: like(value) for name, value in expected.items()}
    if isinstance(expected, list):
        return [like(value) for value in expected]
    return pytest.approx(expected, rel=1e-6, abs=1e-6, nan_ok=True) if isinstance(expected, float) else expected


EVALUATED = [*evaluating.EVALUATED, "own loss"]


@pytest.mark.parametrize("name", EVALUATED)
def test_results_and_counts_are_those_of_one_process_on_every_rank(found, alone, name):
    assert [of_rank["same"][name][0] for of_rank in found] == [like(alone[name][0])] * SIZE


def test_a_rank_without_rows_is_told_so(found):
    assert [of_rank["same"]["of one row"][1] for of_rank in found] == [0, 3, 3]
    assert [of_rank["same"]["list"][1] for of_rank in found] == [0, 2, 2]


def test_predict_yields_the_outputs_of_the_ranks_own_rows(found, alone):
    sizes = [of_rank["same"]["predict"][0] for of_rank in found]
    assert sizes == [[3, 3, 3, 3, 3, 3], [3, 3, 3, 3, 3, 3], [3, 3, 3, 3, 3, 2]]
    outputs = iter(found[0]["same"]["predict"][1])
    by_rank = [[[*itertools.islice(outputs, size)] for size in of_rank] for of_rank in sizes]
    in_order = [row for parts in zip(*by_rank, strict=True) for part in parts for row in part]
    assert in_order == like(alone["predict"][1])
    assert [of_rank["same"]["predict of one row"][0] for of_rank in found] == [[1, 1, 1], [], []]


def test_the_recipe_of_the_page_puts_the_predictions_of_all_ranks_in_order(found):
    assert [of_rank["others"]["recipe"] < 1e-6 for of_rank in found] == [True] * SIZE


def test_sharded_weights_are_evaluated_as_whole_ones(found, alone):
    for name in ("plain", "of one row"):
        assert [of_rank["sharded"][name][0] for of_rank in found] == [like(alone[name][0])] * SIZE
    assert found[0]["sharded"]["predict of one row"] == like(alone["predict of one row"])


@pytest.mark.parametrize("way", ["same", "sharded"])
def test_a_batch_without_a_finite_loss_is_skipped_by_all_with_one_warning(found, alone, way):
    weights, warned = alone["guard"]
    assert [of_rank[way]["guard"] for of_rank in found] == [like([weights, n]) for n in (warned, 0, 0)]


def test_train_metrics_saves_the_same_on_every_rank(found, alone):
    assert [of_rank["same"]["save"] for of_rank in found] == [alone["save"]] * SIZE


@pytest.mark.parametrize("way", ["same", "sharded"])
def test_a_training_logs_and_decides_the_same(found, alone, way):
    expected = alone["train"]
    first, *others = [of_rank[way]["train"] for of_rank in found]
    assert first == like(expected)
    assert {name.partition("/")[2] for _, name, _ in first["logs"]} > {"auroc", "merged/rows", "gradient_norm_clipped"}
    callbacks = ["TrainMetrics", "GradientNorm", "LossGuard", "EarlyStopper"]
    for other in others:
        assert (other["logs"], other["callbacks"]) == ([], callbacks)
        assert (other["results"], other["weights"]) == (like(expected["results"]), like(expected["weights"]))


def test_loaders_of_a_ranks_own_rows_are_evaluated_to_the_last_end(found):
    rows = [row for of_rank in found for row in of_rank["others"]["own"]]
    whole = evaluating.torch_data.DataLoader(evaluating.torch_data.Subset(evaluating.DATA, rows), batch_size=8)
    expected = evaluating.evaluate(whole, metrics={"accuracy": evaluating.METRICS["accuracy"]})[0]
    names = ("eval/loss", "eval/accuracy", "samples")
    for of_rank in found:
        local = of_rank["others"]["local"]
        assert {name: local[name] for name in names} == like({name: expected[name] for name in names})
        assert (local["eval/merged/rows"], local["batches"]) == (len(rows), 5)
        assert sum(of_rank["others"]["predicted"]) == len(of_rank["others"]["own"])
        assert of_rank["others"]["by_sampler"]["samples"] == 54  # what a DistributedSampler gives is taken as it is


def test_loaders_of_different_lengths_are_refused_on_every_rank(found):
    for of_rank in found:
        assert "different data (batches: rank 0: 1, rank 1: 2, rank 2: 3)" in of_rank["others"]["lengths"]
        assert "the loader 'eval' gave no batches on rank 1, and some on others" in of_rank["others"]["ended"]


LOCAL = ("local", "a distributed sampler")


@pytest.fixture(scope="module")
def rows(found):
    """Return what each rank trained on, by case."""
    return {name: [of_rank["rows"][name] for of_rank in found] for name in found[0]["rows"]}


@pytest.mark.parametrize("case", [name for name in dealing.cases(Ranks()) if name not in LOCAL])
def test_the_ranks_together_have_the_batches_of_one_process_in_contiguous_parts(rows, case):
    alone = dealing.seen(dealing.cases(Ranks())[case])
    ranks = rows[case]
    together = [[row for part in parts for row in part] for parts in zip(*(r["rows"] for r in ranks), strict=True)]
    assert together == alone["rows"]
    for number, rank in enumerate(ranks):
        some = Ranks()
        some.rank, some.size = number, len(ranks)
        ends = [share(len(batch), some.rank, some.size) for batch in alone["rows"]]
        assert [len(batch) for batch in rank["rows"]] == [stop - start for start, stop in ends]
        assert (rank["clock"], rank["samples"]) == (alone["clock"], alone["samples"])
        assert rank["warnings"] == alone["warnings"] == []


@pytest.mark.parametrize("case", ["shuffled", "weighted", "fewer rows than ranks"])
def test_no_rank_reads_the_rows_of_another_but_the_first_as_a_placeholder(rows, case):
    for rank in rows[case]:
        own = [row for batch in rank["rows"] for row in batch]
        placeholders = sum(not batch for batch in rank["rows"])
        assert len(rank["read"]) == len(own) + placeholders


def test_the_workers_of_each_rank_draw_other_numbers_and_those_of_rank_0_what_one_process_draws(rows):
    first, *others = (rank["inputs"] for rank in rows["workers that draw"])
    alone = dealing.seen(dealing.cases(Ranks())["workers that draw"])["inputs"]
    assert first == alone[: len(first)]
    assert not any(row in alone or row in first for rank in others for row in rank)


def test_a_local_loader_is_taken_as_it_is_and_ends_for_all_where_it_ends_for_one(rows):
    ranks = rows["local"]
    shortest = 4 - (len(ranks) - 1)
    assert [rank["rows"] for rank in ranks] == [[[i + 10 * r] for i in range(shortest)] * 2 for r in range(len(ranks))]
    assert {rank["clock"][2] for rank in ranks} == {2 * shortest * len(ranks)}
    assert [len(rank["warnings"]) for rank in ranks] == [2] + [0] * (len(ranks) - 1)
    assert f"on rank {len(ranks) - 1}, and not on the others" in ranks[0]["warnings"][0]


def test_a_distributed_sampler_deals_by_itself(rows):
    ranks = rows["a distributed sampler"]
    assert sorted({row for rank in ranks for batch in rank["rows"] for row in batch}) == list(range(dealing.ROWS))
