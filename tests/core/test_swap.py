"""An item of the batch, replaced for a while: which batch comes back, and what others changed meanwhile."""

from engine_core import State
from engine_core.batch import ItemSwap

SETTER = (lambda batch: batch["inner"][0], lambda batch, value: {**batch, "inner": [value]})


def test_the_very_batch_comes_back():
    for batch, key in [(("x", "y"), 0), (["x", "y"], -1), ({"a": "x"}, "a"), ({"inner": ["x"]}, SETTER)]:
        state, swap = State(batch=batch), ItemSwap(key)
        swap.put(state, "new")
        assert state.batch_get_item(key) == "new"
        swap.back(state)
        assert state.batch is batch


def test_what_others_replaced_meanwhile_stays():
    state, swap = State(batch=("x", "y")), ItemSwap(0)
    swap.put(state, "new")
    state.batch_set_item(1, "theirs")
    swap.back(state)
    assert state.batch == ("x", "theirs")


def put_deep(batch, value):
    """Copy the outer dict, and write into the inner one."""
    batch = dict(batch)
    batch["inner"]["y"] = value
    return batch


def test_a_setter_that_writes_in_place_or_copies_the_outer_container_alone_is_undone():
    flat, deep = {"y": "x"}, {"inner": {"y": "x"}}
    for batch, inner, key in [
        (flat, flat, (lambda b: b["y"], lambda b, value: b.update(y=value))),
        (deep, deep["inner"], (lambda b: b["inner"]["y"], put_deep)),
    ]:
        state, swap = State(batch=batch), ItemSwap(key)
        swap.put(state, "new")
        assert inner == {"y": "new"}
        swap.back(state)
        assert (state.batch, inner) == (batch, {"y": "x"})


def test_nothing_is_put_back_twice_or_before_anything_was_put():
    state, swap = State(batch=("x", "y")), ItemSwap(0)
    swap.back(state)
    assert not swap.is_in
    swap.put(state, "new")
    assert swap.is_in
    swap.back(state)
    state.batch = ("other", "batch")
    swap.back(state)
    assert state.batch == ("other", "batch") and not swap.is_in


def test_a_second_put_puts_the_first_back_before():
    batch = ("x", "y")
    state, swap = State(batch=batch), ItemSwap(0)
    swap.put(state, "first")
    state.batch_set_item(1, "theirs")
    swap.put(state, state.batch[0] + " second")
    swap.back(state)
    assert state.batch == ("x", "theirs")
    state.batch = batch
    swap.put(state, "first")
    swap.put(state, "second")
    swap.back(state)
    assert state.batch is batch


def test_a_second_put_into_another_batch_leaves_that_as_it_is():
    other = ("z", "y")
    state, swap = State(batch=("x", "y")), ItemSwap(0)
    swap.put(state, "first")
    state.batch = other
    swap.put(state, "second")
    assert state.batch == ("second", "y")
    swap.back(state)
    assert state.batch is other
