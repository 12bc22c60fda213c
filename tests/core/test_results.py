"""The last and the best value of each evaluation result, which of two is better, and the name of a watched one."""

import math
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_core import State
from engine_core.callbacks.monitor import Monitor
from engine_core.errors import ArgumentError, ArgumentTypeError
from engine_core.results import Best, Results

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "stop.md").read_text(encoding="utf-8")
LOWER, HIGHER = (
    re.search(rf"^\| {kind} \| (.+) \|$", PAGE, re.MULTILINE)[1].split(", ") for kind in ("lower", "higher")
)
OTHER = st.sampled_from(["val", "top1", "Mean", "of", "lossless", "5"])


@settings(max_examples=50)
@given(st.sampled_from([*LOWER, *HIGHER]), OTHER, OTHER, st.sampled_from("_-./@ "))
def test_each_word_of_the_page_says_as_a_whole_word_what_is_better(word, before, after, between):
    lower = word in LOWER
    assert Results().is_lower_better(f"eval/{before}{between}{word.upper()}{between}{after}") is lower
    camel = f"{before.capitalize()}{word.capitalize()}{after.capitalize()}" if after.isalpha() else word
    assert Results().is_lower_better(f"eval/{camel}") is lower


def test_part_of_a_word_and_words_of_both_directions_say_nothing():
    lower = ["mse", "eval/valMAE", "eval/MAETest", "accuracy/loss"]  # the label says nothing
    higher = ["eval/F1Score", "eval/top1_acc", "eval/mIoU"]
    neither = ["eval/lossless", "eval/errors", "eval/gap", "eval/f1/loss", "eval/BrierScore"]
    found = [[Results().is_lower_better(name) for name in names] for names in (lower, higher, neither)]
    assert found == [[True] * 4, [False] * 3, [None] * 5]


def directed(*, ask=None, **told):
    results = Results()
    results.set_directions(**told)
    results.ask(ask or {})
    return results


def test_directions_overrule_the_name_for_one_loader_or_for_all_and_for_one_value_of_a_metric():
    results = directed(lower=["f1", "eval/gap", "dist"], higher=["test/loss", "eval/dist/b"])
    names = ["eval/f1", "test/f1", "eval/gap", "test/gap", "eval/loss", "test/loss", "eval/dist/a", "eval/dist/b"]
    assert [results.is_lower_better(name) for name in names] == [True, True, True, None, True, False, True, False]


class Said:
    def __init__(self, higher):
        self.higher_is_better = higher


def test_a_metric_itself_comes_before_its_name_and_after_what_the_user_says():
    metrics = {"mae": Said(True), "gap": Said(False), "loss": Said(None), "eval": Said(True), "f1": Said(True)}
    metrics |= {"all": {"gap": Said(True), 5: Said("yes")}}
    results = directed(ask=metrics, lower=["f1"])
    names = ["mae", "gap/x", "loss", "f1", "all/gap", "all/5", "other"]
    assert [results.is_lower_better(f"eval/{name}") for name in names] == [False, True, True, True, False, None, None]


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


def test_a_value_is_new_best_only_if_it_is_better_than_all_before_and_there_is_a_direction():
    results = Results()
    found = []
    for step, value in enumerate([2.0, 1.0, 1.0, math.nan, 0.5]):
        results.begin()
        results.record({"eval/loss": value, "eval/gap": value}, step, 0)
        found.append(results.improved == {"eval/loss"})
    assert found == [True, True, False, False, True]
    assert results.to_json()["eval/gap"] == {"last": 0.5, "best": None}


def test_what_is_saved_is_restored_and_keeps_the_new_directions():
    saved = recorded("eval/f1", 5.0, 4.0, 7.0).to_json()
    assert saved == {"eval/f1": {"last": 7.0, "best": {"value": 7.0, "step": 30, "epoch": 3}}}
    results = directed(lower=["f1"])
    results.load({**saved, "eval/x": {"last": math.inf, "best": None}})
    assert results.to_json() == {**saved, "eval/x": {"last": math.inf, "best": None}}
    results.record({"eval/f1": 6.0}, 40, 4)
    assert results.best["eval/f1"] == Best(6.0, 40, 4)


def test_a_best_value_of_another_direction_is_not_restored():
    worst = {"value": 7.0, "step": 10, "epoch": 1}
    results = Results()
    results.load({name: {"last": 5.0, "best": worst} for name in ("eval/mae", "eval/gap", "eval/f1")})
    assert results.last == {"eval/mae": 5.0, "eval/gap": 5.0, "eval/f1": 5.0}
    assert results.best == {"eval/f1": Best(7.0, 10, 1)}


@pytest.mark.parametrize(
    ("metric", "key", "label", "smaller_is_better"),
    [
        ("eval/accuracy", "eval/accuracy", "eval", False),
        ("eval/loss", "eval/loss", "eval", True),
        ("max:eval/loss", "eval/loss", "eval", False),
        ("min:eval/error", "eval/error", "eval", True),
        ("test/top/loss", "test/top/loss", "test", True),
        ("test/f1/loss", "test/f1/loss", "test", None),
        ("max:a:b/c:d", "a:b/c:d", "a:b", False),
    ],
)
def test_a_name_says_loader_result_and_direction(metric, key, label, smaller_is_better):
    monitor = Monitor(metric)
    assert (monitor.key, monitor.label, monitor.smaller_is_better) == (key, label, smaller_is_better)


def test_what_names_no_result_is_refused():
    for metric in ("", "loss", "/loss", "eval/", "min:", "max:loss"):
        with pytest.raises(ArgumentError, match=f"metric={metric!r} has to be the label of an evaluation loader"):
            Monitor(metric)
    with pytest.raises(ArgumentTypeError, match=r"metric=3 \(int\) has to be a name"):
        Monitor(3)


def test_better_is_smaller_or_larger_by_more_than_asked_for_and_finite():
    small, large = Monitor("min:eval/x"), Monitor("max:eval/x")
    for value, smaller, larger in ((0.25, True, False), (0.5, False, False), (1.0, False, True)):
        assert (small.is_better(value, 0.5), large.is_better(value, 0.5)) == (smaller, larger)
        assert not small.is_better(value, 0.5, by_more_than=0.5)
        assert large.is_better(value, 0.5, by_more_than=0.25) is larger
    assert small.is_better(1e30, None)
    for monitor in (small, large):
        for value in (math.nan, math.inf, -math.inf):
            assert (monitor.is_better(value, 0.5), monitor.is_better(value, None)) == (False, False)
            assert not monitor.reaches(value, 0.5)


def test_the_nearest_result_and_the_nearest_loader_are_suggested():
    state = State(metrics={"eval/loss": 0.5, "eval/accuracy": 0.75}, evaluators={"valid": [], "test": []})
    assert Monitor("eval/accuracy").value_in(state) == 0.75
    with pytest.raises(ArgumentError, match=r"no result 'eval/acuracy'; did you mean 'eval/accuracy'\?"):
        Monitor("eval/acuracy").value_in(state)
    Monitor("test/loss").check_loader(state)
    with pytest.raises(ArgumentError, match=r"no evaluation loader is called 'vaild', .*; did you mean 'valid'\?"):
        Monitor("vaild/loss").check_loader(state)
    with pytest.raises(ArgumentError, match=r"nothing is evaluated.* give eval_dataloader to the Trainer"):
        Monitor("eval/loss").check_loader(State())
