import copy
import operator
import pickle
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_core import Time, Timestamp, TimeUnit

COUNTED = ["ep", "ba", "sp", "tok"]
units = st.sampled_from(COUNTED)
counts = st.integers(-(10**12), 10**12)


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        ("10ep", 10, "ep"),
        ("1000tok", 1000, "tok"),
        ("0.5dur", 0.5, "dur"),
        ("30sec", 30, "sec"),
        ("1.5sec", 1.5, "sec"),
        (" 10 EP ", 10, "ep"),
        ("2.0ep", 2, "ep"),
        ("1h30m", 5400, "sec"),
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
        ("", "'' is not a length of training; write it as '10ep'"),
        ("  ", "'  ' is not a length of training; write it as '10ep'"),
        ("10min", "'10min' is not a length of training; write it as '10ep'"),
        ("1.5ep", "'1.5ep': epochs are counted in whole numbers"),
    ],
)
def test_text_that_names_no_length_is_a_value_error_that_says_what_would(text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Time(text)


def test_what_is_neither_text_nor_a_finite_number_with_a_unit_is_refused():
    for value in (None, True, [10], {"ep": 10}, b"10ep"):
        with pytest.raises(TypeError, match="is not a length of training"):
            Time(value, "ep")
    for value in (float("nan"), float("inf"), float("-inf")):
        with pytest.raises(ValueError, match="is not a length of training"):
            Time(value, "sec")
    with pytest.raises(TypeError, match="a bare number has no unit: write '10ep' for 10 epochs"):
        Time(10)
    with pytest.raises(ValueError, match="'epochs' is not a unit of time; known: ep, ba, sp, tok, dur, sec"):
        Time(10, "epochs")


def test_a_number_and_a_unit_are_a_time():
    assert Time(10, "ep") == Time("10ep") == Time(10, TimeUnit.EPOCH) == Time(Time("10ep"))


@settings(max_examples=30)
@given(counts, units)
def test_its_text_gives_the_same_time_again(value, unit):
    time = Time(value, unit)
    assert Time(str(time)) == time
    assert (repr(time), hash(time)) == (f"Time('{value}{unit}')", hash(value))


@settings(max_examples=50)
@given(counts, counts, units)
def test_arithmetic_and_order_are_those_of_the_numbers_and_a_bare_one_and_text_take_the_unit(a, b, unit):
    left, right = Time(a, unit), Time(b, unit)
    total, difference = Time(a + b, unit), Time(a - b, unit)
    assert (left + right, left + b, a + right, left + str(right)) == (total,) * 4
    assert (left - right, left - b, a - right, left - str(right), -right) == (*[difference] * 4, Time(-b, unit))
    for other in (right, b, str(right)):
        assert (left < other, left <= other, left > other, left >= other) == (a < b, a <= b, a > b, a >= b)
    assert (left == right, left != right, left == b, a == right) == (a == b, a != b, a == b, a == b)


def test_two_units_cannot_be_combined_and_are_unequal():
    a, b = Time("1ep"), Time("1ba")
    for combine in (operator.add, operator.sub, operator.lt, operator.ge, operator.truediv):
        with pytest.raises(TypeError, match=r"Time\('1ep'\) and Time\('1ba'\) have different units"):
            combine(a, b)
    assert (a == b, a != b, a == "x") == (False, True, False)


def test_a_multiple_is_cut_to_what_the_unit_counts_and_the_ratio_of_two_times_is_a_number():
    for time, factor, product in [
        ("10ep", 2, "20ep"),
        ("3ba", 0.5, "1ba"),
        ("3sec", 0.5, "1.5sec"),
        ("100ep", 0.29, "29ep"),
        ("100ba", 0.57, "57ba"),
    ]:
        assert Time(time) * factor == factor * Time(time) == Time(product)
    for factor in ("2", Time("2ep"), True, None):
        with pytest.raises(TypeError, match="can be multiplied by a number"):
            Time("10ep") * factor
    assert (Time("1ep") / Time("4ep"), Time("90m") / "1h", Time("1ep") / 2) == (0.25, 1.5, 0.5)
    assert [bool(Time(text)) for text in ("0ep", "0sec", "0dur", "1ep", "0.1sec")] == [False, False, False, True, True]


def test_a_time_is_a_number_where_one_is_asked_for_immutable_and_survives_copies():
    time = Time("1.5sec")
    assert (int(Time("10ep")), float(time)) == (10, 1.5)
    assert pickle.loads(pickle.dumps(time)) == copy.deepcopy(time) == time
    with pytest.raises(AttributeError, match="cannot assign"):
        time.value = 5


steps = st.lists(
    st.one_of(
        st.none(),  # the epoch ends
        st.tuples(st.integers(0, 100), st.integers(0, 1000), st.integers(0, 64)),  # samples, tokens, seconds
    ),
    max_size=30,
)


def walk(steps):
    timestamp = Timestamp()
    for step in steps:
        timestamp = timestamp.to_next_epoch() if step is None else timestamp.to_next_batch(*step)
    return timestamp


@settings(max_examples=50)
@given(steps)
def test_totals_are_sums_over_all_epochs_and_inner_counters_those_since_the_last_one_ended(steps):
    batches = [step for step in steps if step is not None]
    timestamp = walk(steps)
    assert timestamp[:4] == (len(steps) - len(batches), len(batches), *(sum(b[i] for b in batches) for i in (0, 1)))
    assert timestamp.elapsed_s == sum(b[2] for b in batches)
    ends = [place for place, step in enumerate(steps) if step is None]
    since = walk(steps[ends[-1] + 1 :] if ends else steps)
    assert timestamp[4:7] == since[1:4]
    assert timestamp.elapsed_s_in_epoch == since.elapsed_s
    assert [type(count) for count in timestamp] == [int] * 7 + [float] * 2


def test_get_gives_the_total_in_a_unit_and_cannot_know_the_fraction_of_the_whole():
    timestamp = Timestamp(1, 2, 3, 4, 5, 6, 7, 8.0, 9.0)
    for unit, total in {"ep": 1, "ba": 2, "sp": 3, "tok": 4, "sec": 8.0, TimeUnit.BATCH: 2}.items():
        assert timestamp.get(unit) == Time(total, unit)
    assert str(TimeUnit.BATCH) == "ba"
    with pytest.raises(ValueError, match="use State"):
        timestamp.get("dur")
    with pytest.raises(AttributeError):
        timestamp.batch = 1
