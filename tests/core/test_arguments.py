"""Argument checks that algorithms share: what passes, what is refused, and with which message."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

import engine_core
from engine_core import State, Time
from engine_core.arguments import (
    check_flag,
    check_interval,
    check_key,
    check_length,
    check_number,
    check_setter,
    check_taken,
    check_whole,
    interval_in_run,
    item_at,
    length_in_run,
)
from engine_core.errors import ArgumentError, ArgumentTypeError, BatchKeyError

ends = st.floats(-100, 100)


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


@pytest.mark.parametrize(("given", "number"), [(1, 1.0), (Fraction(1, 2), 0.5), (0.25, 0.25)])
def test_numbers_of_all_kinds_become_floats(given, number):
    checked = check_number("decay", given, "[0, 1]", "the share")
    assert (checked, type(checked)) == (number, float)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ("0.1", ArgumentTypeError, "decay='0.1' (str) has to be a number"),
        (True, ArgumentTypeError, "decay=True (bool) has to be a number"),
        (None, ArgumentTypeError, "decay=None (NoneType) has to be a number"),
        (1j, ArgumentTypeError, "decay=1j (complex) has to be a number"),
        (float("nan"), ArgumentError, "decay=nan has to be a finite number"),
        (float("inf"), ArgumentError, "decay=inf has to be a finite number"),
        (1, ArgumentError, "decay=1 has to be within [0, 1): the share that stays"),
    ],
)
def test_anything_but_a_number_in_the_interval_is_refused(given, error, message):
    with pytest.raises(error) as refused:
        check_number("decay", given, "[0, 1)", "the share that stays")
    assert (type(refused.value), str(refused.value)) == (error, message)


def test_an_interval_without_an_end_takes_any_large_number():
    assert check_number("rho", 1e300, "(0, inf)", "the radius") == 1e300


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (1.0, ArgumentTypeError, "interval=1.0 (float) has to be a whole number: every how many steps"),
        (True, ArgumentTypeError, "interval=True (bool) has to be a whole number: every how many steps"),
        (0, ArgumentError, "interval=0 has to be within [1, inf): every how many steps"),
    ],
)
def test_anything_but_a_whole_number_in_the_interval_is_refused(given, error, message):
    with pytest.raises(error) as refused:
        check_whole("interval", given, "[1, inf)", "every how many steps")
    assert (type(refused.value), str(refused.value)) == (error, message)


@pytest.mark.parametrize("given", [0, 1, "no", None])
def test_a_flag_is_true_or_false(given):
    with pytest.raises(ArgumentTypeError, match=r"^replace_convs=.* has to be True or False$"):
        check_flag("replace_convs", given)


def test_a_flag_is_what_it_is():
    assert [check_flag("flag", value) for value in (True, False)] == [True, False]


@pytest.mark.parametrize("key", [0, -1, "image", (len, print)])
def test_a_key_is_an_index_a_name_or_a_pair_of_functions(key):
    check_key("input_key", key)


@pytest.mark.parametrize("key", [None, True, 1.0, (len,), (len, 1), [len, print]])
def test_anything_else_is_not_a_key(key):
    with pytest.raises(ArgumentTypeError, match=r"^input_key=.* has to be an index, a key or attribute name"):
        check_key("input_key", key)


def test_a_missing_item_is_reported_with_the_name_of_the_argument():
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


def test_a_setter_that_writes_into_the_batch_is_refused():
    check_setter({"x": 1}, "input_key", "x")
    check_setter((INPUTS, TARGETS), "input_key", PAIR)
    with pytest.raises(ArgumentError, match=r"^the setter of input_key writes into the loader's batch"):
        check_setter([1], "input_key", (lambda batch: batch[0], lambda batch, value: batch.__setitem__(0, value)))


class Rows:
    """Gives another view of itself each time, as tensors do."""

    def view_as(self, other):
        return Rows()


def test_a_setter_that_copies_the_outer_container_alone_is_refused_and_undone():
    def put(batch, value):
        batch = dict(batch)
        batch["inner"]["x"] = value
        return batch

    rows = Rows()
    batch = {"inner": {"x": rows}}
    with pytest.raises(ArgumentError, match="of everything on the way to the item"):
        check_setter(batch, "input_key", (lambda batch: batch["inner"]["x"], put))
    assert batch["inner"]["x"] is rows


@pytest.mark.parametrize("given", ["0ba", "10ep", "5sp", "1h30m", "0dur", "1dur", Time("0.5dur")])
def test_a_length_from_0_on_passes(given):
    assert check_length("warmup", given) == Time(given)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ("-1ba", ArgumentError, "warmup='-1ba' has to be within the training: 0 or more, and at most 1dur"),
        ("1.1dur", ArgumentError, "warmup='1.1dur' has to be within the training: 0 or more, and at most 1dur"),
    ],
)
def test_a_length_outside_of_the_training_is_refused(given, error, message):
    with pytest.raises(error) as refused:
        check_length("warmup", given)
    assert str(refused.value) == message


@pytest.mark.parametrize(("given", "error"), [(5, ArgumentTypeError), (None, ArgumentTypeError), ("x", ArgumentError)])
def test_what_is_not_a_length_is_refused_under_the_arguments_name(given, error):
    with pytest.raises(error, match=r"^warmup: "):
        check_length("warmup", given)


@pytest.mark.parametrize(
    ("length", "whole", "counted"),
    [
        ("0.5dur", "10ep", "5ep"),
        ("0.5dur", "3ep", "600ba"),
        ("0.29dur", "100ba", "29ba"),
        ("0.29dur", "100ep", "29ep"),
        ("0.0725dur", "1ep", "29ba"),
        ("0.3dur", "3ep", "360ba"),
        ("0.0001dur", "3ep", "1ba"),
        ("1dur", "7ba", "7ba"),
        ("30sec", None, "30sec"),
    ],
)
def test_a_fraction_of_the_training_is_counted_in_whole_epochs_or_else_in_batches(length, whole, counted):
    state = State(train_dataloader=range(400), max_duration=whole)
    assert interval_in_run(state, "every", length).length == length_in_run(state, length) == Time(counted)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("0dur", "every has to be positive, not '0dur'"),
        ("-1ba", "every has to be positive, not '-1ba'"),
        ("2dur", "every='2dur' has to be within the training: 0 or more, and at most 1dur"),
    ],
)
def test_an_interval_longer_than_the_training_or_not_positive_is_refused(given, message):
    with pytest.raises(ArgumentError) as refused:
        check_interval("every", given)
    assert str(refused.value) == message
