"""The last and the best value of each evaluation result, and which of two values is better."""

import math

import pytest

from engine_core.errors import ArgumentError
from engine_core.results import Best, Results


@pytest.mark.parametrize(
    ("name", "lower"),
    [
        ("eval/loss", True),
        ("eval/val_loss", True),
        ("eval/error", True),
        ("test/top1_error", True),
        ("eval/MeanSquaredError", True),
        ("eval/perplexity", True),
        ("eval/accuracy", False),
        ("eval/lossless", False),
        ("eval/error/count", False),
        ("loss/f1", False),
    ],
)
def test_lower_is_better_for_names_that_end_in_loss_error_or_perplexity(name, lower):
    assert Results().is_lower_better(name) is lower


def test_directions_overrule_the_name_for_one_loader_or_for_all():
    results = Results()
    results.set_directions(lower=["mse", "eval/rank"], higher=["test/loss"])
    names = ["eval/mse", "test/mse", "eval/rank", "test/rank", "eval/loss", "test/loss"]
    assert [name for name in names if results.is_lower_better(name)] == [*names[:3], "eval/loss"]


def test_a_direction_holds_for_all_values_of_a_metric_unless_one_has_its_own():
    results = Results()
    results.set_directions(lower=["dist"], higher=["eval/dist/b"])
    assert [results.is_lower_better(f"eval/dist/{part}") for part in "ab"] == [True, False]


def test_a_name_with_two_directions_is_refused():
    with pytest.raises(ArgumentError, match="'mse' can't be better both if it is lower and if it is higher"):
        Results().set_directions(lower=["mse"], higher=["mse"])


def recorded(name, *values):
    results = Results()
    for step, value in enumerate(values, 1):
        results.record({name: value}, step * 10, step)
    return results


@pytest.mark.parametrize(
    ("name", "values", "best"),
    [
        ("eval/loss", (3.0, 1.0, 2.0), Best(1.0, 20, 2)),
        ("eval/accuracy", (0.25, 0.5, 0.125), Best(0.5, 20, 2)),
        ("eval/loss", (1.0, 1.0, 1.0), Best(1.0, 10, 1)),
        ("eval/loss", (math.nan, 2.0, -math.inf), Best(2.0, 20, 2)),
        ("eval/accuracy", (math.inf, 0.5, math.nan), Best(0.5, 20, 2)),
    ],
)
def test_the_best_is_the_first_of_equals_and_finite(name, values, best):
    results = recorded(name, *values)
    assert results.best == {name: best}
    assert math.isnan(values[-1]) or results.last == {name: values[-1]}


def test_a_value_is_new_best_only_if_it_is_better_than_all_before():
    results = Results()
    found = []
    for step, value in enumerate([2.0, 1.0, 1.0, math.nan, 0.5]):
        results.begin()
        results.record({"eval/loss": value}, step, 0)
        found.append(results.improved == {"eval/loss"})
    assert found == [True, True, False, False, True]


def test_what_is_saved_is_restored_and_keeps_the_new_directions():
    saved = recorded("eval/rank", 5.0, 4.0, 7.0).to_json()
    assert saved == {"eval/rank": {"last": 7.0, "best": {"value": 7.0, "step": 30, "epoch": 3}}}
    results = Results()
    results.set_directions(lower=["rank"])
    results.load({**saved, "eval/x": {"last": math.inf, "best": None}})
    assert results.to_json() == {**saved, "eval/x": {"last": math.inf, "best": None}}
    results.record({"eval/rank": 6.0}, 40, 4)
    assert results.best["eval/rank"] == Best(6.0, 40, 4)
