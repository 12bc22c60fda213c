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
