"""The name of a watched result, and which of two values is better."""

import math

import pytest

from engine_core import State
from engine_core.callbacks.monitor import Monitor
from engine_core.errors import ArgumentError, ArgumentTypeError


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


@pytest.mark.parametrize("metric", ["", "loss", "/loss", "eval/", "min:", "max:loss"])
def test_what_names_no_result_is_refused(metric):
    with pytest.raises(ArgumentError, match=f"metric={metric!r} has to be the label of an evaluation loader"):
        Monitor(metric)


def test_anything_but_a_name_is_refused():
    with pytest.raises(ArgumentTypeError, match=r"metric=3 \(int\) has to be a name"):
        Monitor(3)


@pytest.mark.parametrize(("value", "smaller", "larger"), [(0.25, True, False), (0.5, False, False), (1.0, False, True)])
def test_better_is_smaller_or_larger_by_more_than_asked_for(value, smaller, larger):
    assert Monitor("min:eval/x").is_better(value, 0.5) is smaller
    assert Monitor("max:eval/x").is_better(value, 0.5) is larger
    assert not Monitor("min:eval/x").is_better(value, 0.5, by_more_than=0.5)
    assert Monitor("max:eval/x").is_better(value, 0.5, by_more_than=0.25) is larger


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("metric", ["min:eval/x", "max:eval/x"])
def test_a_value_that_is_not_finite_is_never_better_and_reaches_nothing(metric, value):
    assert not Monitor(metric).is_better(value, 0.5)
    assert not Monitor(metric).is_better(value, None)
    assert not Monitor(metric).reaches(value, 0.5)


def test_any_finite_value_is_better_than_none():
    assert Monitor("eval/loss").is_better(1e30, None)


def test_the_nearest_result_is_suggested():
    state = State(metrics={"eval/loss": 0.5, "eval/accuracy": 0.75})
    assert Monitor("eval/accuracy").value_in(state) == 0.75
    with pytest.raises(ArgumentError, match=r"no result 'eval/acuracy'; did you mean 'eval/accuracy'\?"):
        Monitor("eval/acuracy").value_in(state)


def test_the_nearest_loader_is_suggested():
    state = State(evaluators={"valid": [], "test": []})
    Monitor("test/loss").check_loader(state)
    with pytest.raises(ArgumentError, match=r"no evaluation loader is called 'vaild', .*; did you mean 'valid'\?"):
        Monitor("vaild/loss").check_loader(state)


def test_without_a_loader_it_says_what_to_do():
    with pytest.raises(ArgumentError, match=r"nothing is evaluated.* give eval_dataloader to the Trainer"):
        Monitor("eval/loss").check_loader(State())
