"""Argument checks that algorithms share: what passes, what is refused, and with which message."""

import re
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import engine_core
from engine_core import State, Time
from engine_core.arguments import (
    check_flag,
    check_interval,
    check_key,
    check_length,
    check_number,
    check_taken,
    check_whole,
    interval_in_run,
    item_at,
    length_in_run,
)
from engine_core.errors import ArgumentError, ArgumentTypeError, BatchKeyError

ends = st.floats(-100, 100)


@settings(max_examples=50)
@given(st.floats(-150, 150), ends, ends, st.booleans(), st.booleans())
def test_a_number_passes_exactly_where_the_interval_contains_it(number, low, high, opens, closes):
    interval = f"{'(' if opens else '['}{low}, {high}{')' if closes else ']'}"
    has_it = (low < number if opens else low <= number) and (number < high if closes else number <= high)
    if has_it:
        assert check_number("x", number, interval, "any number") == number
        return
    with pytest.raises(ArgumentError) as refused:
        check_number("x", number, interval, "any number")
    assert str(refused.value) == f"x={number!r} has to be within {interval}: any number"


def test_numbers_of_all_kinds_become_floats_however_large():
    for value, number in ((1, 1.0), (Fraction(1, 2), 0.5), (0.25, 0.25), (1e300, 1e300)):
        checked = check_number("decay", value, "[0, inf)", "the share")
        assert (checked, type(checked)) == (number, float)


def refused(check, *arguments):
    """Return the type and the text of the refusal."""
    with pytest.raises((ArgumentError, ArgumentTypeError)) as refusal:
        check(*arguments)
    return type(refusal.value), str(refusal.value)


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ("0.1", ArgumentTypeError, "decay='0.1' (str) has to be a number"),
        (True, ArgumentTypeError, "decay=True (bool) has to be a number"),
        (1j, ArgumentTypeError, "decay=1j (complex) has to be a number"),
        (float("nan"), ArgumentError, "decay=nan has to be a finite number"),
        (float("inf"), ArgumentError, "decay=inf has to be a finite number"),
        (1, ArgumentError, "decay=1 has to be within [0, 1): the share that stays"),
    ],
)
def test_anything_but_a_number_in_the_interval_is_refused(value, error, message):
    assert refused(check_number, "decay", value, "[0, 1)", "the share that stays") == (error, message)


def test_anything_but_a_whole_number_in_the_interval_is_refused():
    for value, error, why in [
        (1.0, ArgumentTypeError, "1.0 (float) has to be a whole number"),
        (True, ArgumentTypeError, "True (bool) has to be a whole number"),
        (0, ArgumentError, "0 has to be within [1, inf)"),
    ]:
        told = refused(check_whole, "interval", value, "[1, inf)", "every how many steps")
        assert told == (error, f"interval={why}: every how many steps")


def test_a_flag_is_true_or_false():
    assert [check_flag("flag", value) for value in (True, False)] == [True, False]
    for value in (0, 1, "no", None):
        error, message = refused(check_flag, "replace_convs", value)
        assert (error, message.endswith("has to be True or False")) == (ArgumentTypeError, True)


def test_a_key_is_an_index_a_name_or_a_pair_of_functions_and_the_item_is_there():
    for key in (0, -1, "image", (len, print)):
        check_key("input_key", key)
    for key in (None, True, 1.0, (len,), (len, 1), [len, print]):
        error, message = refused(check_key, "input_key", key)
        assert error is ArgumentTypeError
        assert re.match("input_key=.* has to be an index, a key or attribute name", message)
    assert item_at({"x": 1}, "input_key", "x") == 1
    with pytest.raises(BatchKeyError, match=r"^input_key='y': a batch of type dict has no item 'y'.*set input_key to"):
        item_at({"x": 1}, "input_key", "y")


INPUTS, TARGETS = [1], [2]
PAIR = (lambda batch: batch[0], lambda batch, value: (value, *batch[1:]))


def state_of(batch, **items):
    pytest.importorskip("torch")
    return State(batch=batch, objective=engine_core.Objective(print, **items))


@pytest.mark.parametrize(
    ("batch", "items", "key"),
    [
        *(((INPUTS, TARGETS), {}, key) for key in (1, -1, PAIR)),
        ({"x": INPUTS, "y": TARGETS}, {"targets": "y"}, "y"),
        ((INPUTS, TARGETS, [3]), {"targets": (1, 2)}, 2),
        ((INPUTS, TARGETS, [3]), {"targets": "*"}, 2),
        *((batch, {}, "y") for batch in ({"x": INPUTS, "y": TARGETS}, 5, (INPUTS,))),  # of a loop of the user's own
    ],
)
def test_an_item_that_the_objective_takes_too_is_accepted(batch, items, key):
    check_taken(state_of(batch, **items), "target_key", key, "targets")


@pytest.mark.parametrize(("index", "what"), [(0, "inputs"), (1, "targets")])
def test_an_item_other_than_the_objectives_is_refused(index, what):
    message = rf"^key=2 is not item {index} of the batch, .* is the {what} of the (model|loss): .*, {what}=2\)$"
    with pytest.raises(ArgumentError, match=message):
        check_taken(state_of((INPUTS, TARGETS, [3])), "key", 2, what)
    check_taken(State(batch=(INPUTS, TARGETS, [3])), "key", 2, what)  # a model's own loss gets the whole batch


WITHIN = "has to be within the training: 0 or more, and at most 1dur"


def test_a_length_is_within_the_training_and_an_interval_is_positive_too():
    for value in ("0ba", "10ep", "5sp", "1h30m", "0dur", "1dur", Time("0.5dur")):
        assert check_length("warmup", value) == Time(value)
    for check, value, said in [
        (check_length, "-1ba", f"x='-1ba' {WITHIN}"),
        (check_length, "1.1dur", f"x='1.1dur' {WITHIN}"),
        (check_interval, "2dur", f"x='2dur' {WITHIN}"),
        (check_interval, "0dur", "x has to be positive, not '0dur'"),
        (check_interval, "-1ba", "x has to be positive, not '-1ba'"),
    ]:
        assert refused(check, "x", value) == (ArgumentError, said)


def test_what_is_not_a_length_is_refused_under_the_arguments_name():
    for value, kind in ((5, ArgumentTypeError), (None, ArgumentTypeError), ("x", ArgumentError)):
        error, message = refused(check_length, "warmup", value)
        assert (error, message.startswith("warmup: ")) == (kind, True)


def test_a_fraction_of_the_training_is_counted_in_whole_epochs_or_else_in_batches():
    for length, whole, counted in [
        ("0.5dur", "10ep", "5ep"),
        ("0.5dur", "3ep", "600ba"),
        ("0.29dur", "100ba", "29ba"),
        ("0.29dur", "100ep", "29ep"),
        ("0.0725dur", "1ep", "29ba"),
        ("0.0001dur", "3ep", "1ba"),
        ("1dur", "7ba", "7ba"),
        ("30sec", None, "30sec"),
    ]:
        state = State(train_dataloader=range(400), max_duration=whole)
        assert interval_in_run(state, "every", length).length == length_in_run(state, length) == Time(counted)
