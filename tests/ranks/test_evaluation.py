"""Evaluations, predictions and what callbacks show, on several processes as on one."""

import itertools
import json
import warnings
from pathlib import Path

import pytest

from . import evaluating
from .starting import start

SIZE = 3
pytestmark = [pytest.mark.full, pytest.mark.ranks]


@pytest.fixture(scope="module")
def found():
    """Return what each rank found."""
    ended = start(Path(evaluating.__file__), SIZE)
    assert ended.rc == 0, ended.output
    return ended.written


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
    assert {name.partition("/")[2] for _, name, _ in first["logs"]} > {"auroc", "holder", "gradient_norm_clipped"}
    for other in others:
        assert (other["logs"], other["callbacks"]) == (
            [],
            ["TrainMetrics", "GradientNorm", "LossGuard", "EarlyStopper"],
        )
        assert (other["results"], other["weights"]) == (like(expected["results"]), like(expected["weights"]))


def test_loaders_of_a_ranks_own_rows_are_evaluated_to_the_last_end(found):
    rows = [row for of_rank in found for row in of_rank["others"]["own"]]
    whole = evaluating.torch_data.DataLoader(evaluating.torch_data.Subset(evaluating.DATA, rows), batch_size=8)
    expected = evaluating.evaluate(whole, metrics={"accuracy": evaluating.METRICS["accuracy"]})[0]
    for of_rank in found:
        local = of_rank["others"]["local"]
        assert {name: local[name] for name in ("eval/loss", "eval/accuracy", "samples")} == like(
            {name: expected[name] for name in ("eval/loss", "eval/accuracy", "samples")}
        )
        assert (local["eval/merged/rows"], local["batches"]) == (len(rows), 5)
        assert sum(of_rank["others"]["predicted"]) == len(of_rank["others"]["own"])


def test_what_a_distributed_sampler_gives_is_taken_as_it_is_for_loaders_of_a_ranks_own_rows(found):
    assert [of_rank["others"]["by_sampler"]["samples"] for of_rank in found] == [54] * SIZE


REFUSED = {
    "metric": "metric 'own' (OfOneRank) sees the rows of one rank, and nothing says how to bring 3 ranks together",
    "streams": "the rows of the loader 'eval', a DataLoader of an IterableDataset, can't be dealt to 3 ranks",
    "lengths": "different data (batches: rank 0: 1, rank 1: 2, rank 2: 3)",
    "ended": "the loader 'eval' gave no batches on rank 1, and some on others",
    "rows": "different data (row 0 of the dataset of rank 1, 2 is not that of rank 0): each rank has to read",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_wrong_is_refused_on_every_rank(found, name):
    for of_rank in found:
        assert REFUSED[name] in of_rank["others"][name]
