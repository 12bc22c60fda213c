import copy
import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_core import Time, TimeUnit

COUNTED = ["ep", "ba", "sp", "tok"]
units = st.sampled_from(COUNTED)
counts = st.integers(-(10**12), 10**12)


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        ("10ep", 10, "ep"),
        ("500ba", 500, "ba"),
        ("4096sp", 4096, "sp"),
        ("1000tok", 1000, "tok"),
        ("0.5dur", 0.5, "dur"),
        ("30sec", 30, "sec"),
        ("1.5sec", 1.5, "sec"),
        (" 10 EP ", 10, "ep"),
        ("2.0ep", 2, "ep"),
        ("1h30m", 5400, "sec"),
        ("90m", 5400, "sec"),
        ("24h", 86400, "sec"),
        ("45s", 45, "sec"),
        ("1h 1m 1s", 3661, "sec"),
    ],
)
def test_text_with_a_unit_is_a_time(text, value, unit):
    time = Time(text)
    assert (time.value, time.unit, type(time.value)) == (value, TimeUnit(unit), type(value))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("5", "'5' has no unit; write it as '10ep'"),
        ("-1.5", "'-1.5' has no unit; write it as '10ep'"),
        ("", "'' is not a length of training; write it as '10ep'"),
        ("  ", "'  ' is not a length of training; write it as '10ep'"),
        ("ten epochs", "'ten epochs' is not a length of training; write it as '10ep'"),
        ("10min", "'10min' is not a length of training; write it as '10ep'"),
        ("1.5ep", "'1.5ep': epochs are counted in whole numbers"),
        ("0.5ba", "'0.5ba': batches are counted in whole numbers"),
    ],
)
def test_text_that_names_no_length_is_a_value_error_that_says_what_would(text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Time(text)


def test_a_bare_number_is_a_type_error_that_says_how_to_write_it():
    with pytest.raises(TypeError, match="a bare number has no unit: write '10ep' for 10 epochs"):
        Time(10)


@pytest.mark.parametrize("value", [None, True, [10], {"ep": 10}, b"10ep"])
def test_anything_but_text_or_a_number_is_a_type_error(value):
    with pytest.raises(TypeError, match="is not a length of training"):
        Time(value, "ep")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_time_is_finite(value):
    with pytest.raises(ValueError, match="is not a length of training"):
        Time(value, "sec")


def test_an_unknown_unit_names_the_known_ones():
    with pytest.raises(ValueError, match="'epochs' is not a unit of time; known: ep, ba, sp, tok, dur, sec"):
        Time(10, "epochs")


def test_a_number_and_a_unit_are_a_time():
    assert Time(10, "ep") == Time("10ep") == Time(10, TimeUnit.EPOCH) == Time(Time("10ep"))


@given(counts, units)
def test_its_text_gives_the_same_time_again(value, unit):
    time = Time(value, unit)
    assert Time(str(time)) == time
    assert repr(time) == f"Time('{value}{unit}')"


@given(counts, counts, units)
def test_arithmetic_and_order_are_those_of_the_numbers(a, b, unit):
    left, right = Time(a, unit), Time(b, unit)
    assert (left + right, left - right, -left) == (Time(a + b, unit), Time(a - b, unit), Time(-a, unit))
    assert (left < right, left <= right, left > right, left >= right) == (a < b, a <= b, a > b, a >= b)
    assert (left == right, left != right) == (a == b, a != b)


@given(counts, counts, units)
def test_a_bare_number_takes_the_unit_of_the_other_side(a, b, unit):
    time = Time(a, unit)
    assert (time + b, b + time, time - b, b - time) == (
        Time(a + b, unit),
        Time(a + b, unit),
        Time(a - b, unit),
        Time(b - a, unit),
    )
    assert (time < b, b < time, time == b, b == time) == (a < b, b < a, a == b, a == b)


@given(counts, units)
def test_equal_times_and_numbers_have_equal_hashes(value, unit):
    assert hash(Time(value, unit)) == hash(Time(value, unit)) == hash(value)


def test_text_stands_for_a_time_in_arithmetic():
    assert Time("10ep") - "4ep" == Time("6ep")
    assert Time("10ep") >= "4ep"


@pytest.mark.parametrize(
    "mixed",
    [lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a < b, lambda a, b: a >= b, lambda a, b: a / b],
)
def test_two_units_cannot_be_combined(mixed):
    with pytest.raises(TypeError, match=r"Time\('1ep'\) and Time\('1ba'\) have different units"):
        mixed(Time("1ep"), Time("1ba"))


def test_times_of_two_units_are_unequal_and_do_not_raise():
    assert (Time("1ep") == Time("1ba"), Time("1ep") != Time("1ba"), Time("1ep") == "x") == (False, True, False)


def test_zero_is_false():
    assert [bool(Time(text)) for text in ("0ep", "0sec", "0dur", "1ep", "0.1sec")] == [False, False, False, True, True]


@pytest.mark.parametrize(
    ("time", "factor", "product"),
    [
        ("10ep", 2, "20ep"),
        ("3ba", 0.5, "1ba"),
        ("3sec", 0.5, "1.5sec"),
        ("100ep", 0.29, "29ep"),
        ("100ba", 0.57, "57ba"),
    ],
)
def test_a_multiple_is_cut_to_what_the_unit_counts(time, factor, product):
    assert Time(time) * factor == factor * Time(time) == Time(product)


@pytest.mark.parametrize("factor", ["2", Time("2ep"), True, None])
def test_a_time_is_multiplied_by_numbers_only(factor):
    with pytest.raises(TypeError, match="can be multiplied by a number"):
        Time("10ep") * factor


def test_the_ratio_of_two_times_is_a_number():
    assert (Time("1ep") / Time("4ep"), Time("90m") / "1h", Time("1ep") / 2) == (0.25, 1.5, 0.5)


def test_a_time_is_immutable():
    with pytest.raises(AttributeError, match="cannot assign"):
        Time("10ep").value = 5


def test_a_time_survives_copies_and_pickling():
    time = Time("1.5sec")
    assert pickle.loads(pickle.dumps(time)) == copy.deepcopy(time) == time


def test_a_time_is_a_number_where_one_is_asked_for():
    assert (int(Time("10ep")), float(Time("1.5sec"))) == (10, 1.5)
