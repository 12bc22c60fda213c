"""How large images are, and when: the schedule at many points, and the rounding of sizes."""

from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from augmentation_plugin import ProgressiveResizing, resizing_scale
from augmentation_plugin.sizes import resized_side

FRACTIONS = st.floats(0, 1)


def test_the_default_schedule_is_this() -> None:
    """Half up to the middle, 1 from 0.8 on, and between them 1/2 + 1/2 * (t - 0.5) / 0.3."""
    scales = {hundredth: resizing_scale(hundredth / 100) for hundredth in range(0, 101, 5)}
    assert scales == pytest.approx({
        0: 0.5, 5: 0.5, 10: 0.5, 15: 0.5, 20: 0.5, 25: 0.5, 30: 0.5, 35: 0.5, 40: 0.5, 45: 0.5, 50: 0.5,
        55: 7 / 12, 60: 8 / 12, 65: 9 / 12, 70: 10 / 12, 75: 11 / 12, 80: 1, 85: 1, 90: 1, 95: 1, 100: 1,
    })  # fmt: skip
    assert {scales[0], scales[50]} == {0.5} and {scales[80], scales[100]} == {1.0}


@pytest.mark.parametrize(
    ("arguments", "tenths"),
    [
        ((0.2, 0, 0), [0.2, 0.28, 0.36, 0.44, 0.52, 0.6, 0.68, 0.76, 0.84, 0.92, 1]),
        ((0.4, 0.3, 0.7), [0.4] * 7 + [1] * 4),
        ((0.4, 0.7, 0.3), [0.4] * 3 + [1] * 8),
        ((0.4, 0, 1), [0.4] * 10 + [1]),
        ((0.4, 1, 0), [1] * 11),
        ((1, 0.2, 0.5), [1] * 11),
    ],
    ids=["ramp only", "a step at 0.7", "a step at 0.3", "never", "at once", "no resizing"],
)
def test_the_bounds_of_the_schedule(arguments: tuple[float, ...], tenths: list[float]) -> None:
    assert [resizing_scale(tenth / 10, *arguments) for tenth in range(11)] == pytest.approx(tenths)


@given(FRACTIONS, FRACTIONS, st.floats(0.01, 1), FRACTIONS, FRACTIONS)
def test_the_scale_never_falls_and_stays_within_its_bounds(
    one: float, other: float, initial: float, finetune: float, delay: float
) -> None:
    assume(finetune + delay <= 1)
    earlier, later = (resizing_scale(t, initial, finetune, delay) for t in sorted((one, other)))
    assert initial <= earlier <= later <= 1


@given(st.integers(1, 300), FRACTIONS.filter(bool), st.integers(1, 64))
def test_a_side_is_the_nearest_multiple_within_its_bounds(side: int, scale: float, increment: int) -> None:
    """The exact size is that of the fraction which the float is; a tie may go either way by rounding."""
    got, exact = resized_side(side, scale, increment), side * Fraction(scale)
    assert 1 <= got <= side
    if got == side:
        assert scale == 1 or exact + Fraction(increment, 2) >= side or side <= increment
    else:
        assert got % increment == 0
        assert abs(got - exact) <= Fraction(increment, 2) + Fraction(1, 10**6) * increment or got == increment


@pytest.mark.parametrize(
    ("side", "increment", "expected"),
    [
        (32, 4, [4, 8, 16, 20, 24, 28, 32, 32]),
        (29, 4, [4, 8, 16, 16, 20, 28, 28, 29]),
        (31, 1, [3, 8, 16, 19, 23, 28, 31, 31]),
        (3, 4, [3] * 8),
    ],
)
def test_sides_at_growing_scales(side: int, increment: int, expected: list[int]) -> None:
    scales = (0.1, 0.25, 0.5, 0.6, 0.75, 0.9, 0.99, 1)
    assert [resized_side(side, scale, increment) for scale in scales] == expected


@given(st.integers(1, 300), st.floats(0.001, 1), st.floats(0.001, 1), st.integers(1, 64))
def test_a_side_never_falls_with_the_scale(side: int, one: float, other: float, increment: int) -> None:
    smaller, larger = sorted((one, other))
    assert resized_side(side, smaller, increment) <= resized_side(side, larger, increment)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"initial_scale": 0}, r"initial_scale=0 has to be within \(0, 1\]"),
        ({"initial_scale": 1.5}, "initial_scale=1.5"),
        ({"finetune_fraction": -0.1}, "finetune_fraction=-0.1"),
        ({"delay_fraction": 1.1}, "delay_fraction=1.1"),
        ({"delay_fraction": 0.6, "finetune_fraction": 0.5}, "add up to more than the training"),
        ({"size_increment": 0}, "size_increment=0"),
        ({"mode": "stretch"}, "mode='stretch' has to be 'resize' or 'crop'"),
    ],
)
def test_arguments_that_make_no_schedule_are_refused(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ProgressiveResizing(**arguments)
    if arguments.keys() <= {"initial_scale", "finetune_fraction", "delay_fraction"}:
        with pytest.raises(ValueError, match=message):
            resizing_scale(0.5, **arguments)


@pytest.mark.parametrize("elapsed", [-0.1, float("nan"), "0.5"])
def test_an_invalid_moment_is_refused(elapsed: float) -> None:
    with pytest.raises((ValueError, TypeError), match="elapsed="):
        resizing_scale(elapsed)


@pytest.mark.parametrize(
    "arguments", [{"mode": 1}, {"size_increment": 1.5}, {"resize_targets": 1}, {"input_key": 1.5}, {"target_key": None}]
)
def test_arguments_of_a_wrong_type_are_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(TypeError, match=next(iter(arguments))):
        ProgressiveResizing(**arguments)
