import dataclasses
import functools
from collections import OrderedDict, UserDict
from collections.abc import MutableMapping
from types import MappingProxyType, SimpleNamespace
from typing import NamedTuple

import pytest

from engine_core import State
from engine_core.batch import ItemSwap, get_item, set_item


class Pair(NamedTuple):
    inputs: str
    targets: str


@dataclasses.dataclass
class Batch:
    inputs: str
    targets: str


class Encoding(UserDict):
    """As Hugging Face's BatchEncoding: a mapping whose items are attributes too."""

    def __getattr__(self, name):
        return self.data[name]


class Output(OrderedDict):
    """As Hugging Face's ModelOutput: a mapping that also counts as a sequence of its values."""

    def __getitem__(self, key):
        return super().__getitem__(key) if isinstance(key, str) else list(self.values())[key]


class Foreign(MutableMapping):
    """Keeps its items in its own dict, which `copy.copy` would share."""

    def __init__(self, **items):
        self.own = items

    def __getitem__(self, key):
        return self.own[key]

    def __setitem__(self, key, value):
        self.own[key] = value

    def __delitem__(self, key):
        del self.own[key]

    def __iter__(self):
        return iter(self.own)

    def __len__(self):
        return len(self.own)


CASES = {
    "tuple from the end": (("x", "y"), -1, ("x", "z")),
    "list": (["x", "y"], 1, ["x", "z"]),
    "dict": ({"inputs": "x", "targets": "y"}, "targets", {"inputs": "x", "targets": "z"}),
    "namedtuple by name": (Pair("x", "y"), "targets", Pair("x", "z")),
    "namedtuple by index": (Pair("x", "y"), 1, Pair("x", "z")),
    "dataclass": (Batch("x", "y"), "targets", Batch("x", "z")),
    "attribute": (SimpleNamespace(targets="y"), "targets", SimpleNamespace(targets="z")),
    "encoding": (Encoding(inputs="x", targets="y"), "targets", Encoding(inputs="x", targets="z")),
    "output by name": (Output(inputs="x", targets="y"), "targets", Output(inputs="x", targets="z")),
    "foreign": (Foreign(inputs="x", targets="y"), "targets", Foreign(inputs="x", targets="z")),
}


@pytest.mark.parametrize(("batch", "key", "changed"), CASES.values(), ids=CASES)
def test_an_item_is_read_and_replaced_in_every_container_and_the_loaders_own_is_not_changed(batch, key, changed):
    result = set_item(batch, key, "z")
    assert (get_item(batch, key), result) == ("y", changed)
    assert type(result) is type(batch)


def test_a_mapping_that_cannot_be_written_to_becomes_a_dict_and_a_dataclass_is_not_constructed_again():
    read_only = MappingProxyType({"inputs": "x", "targets": "y"})
    assert set_item(read_only, "targets", "z") == {"inputs": "x", "targets": "z"}
    batch = Prepared(2, 10)
    changed = set_item(batch, "inputs", 5)
    assert (changed.inputs, changed.rows, batch.inputs, type(changed)) == (5, 7, 20, Prepared)


def test_a_setter_may_write_into_the_batch_or_return_another():
    def second(batch):
        return batch[1]

    def write(batch, value):
        batch[1] = value

    batch = ["x", "y"]
    assert (get_item(batch, (second, write)), set_item(batch, (second, write), "z")) == ("y", ["x", "z"])
    assert set_item(("x", "y"), (second, lambda batch, value: (batch[0], value)), "z") == ("x", "z")


LIST = "has no attribute 'inputs'; give an index, 0 for the first"
MISSING = {
    "index": (("x", "y"), 2, "tuple with 2 items has no item 2"),
    "key": ({"targets": "y"}, "target", "dict has no item 'target'; did you mean 'targets'?"),
    "field": (Pair("x", "y"), "target", "Pair has no attribute 'target'; did you mean 'targets'?"),
    "attribute": (Batch("x", "y"), "labels", "Batch has no attribute 'labels'; known: inputs, targets"),
    "name in a list": (["x", "y"], "inputs", f"list with 2 items {LIST}"),
    "name in a tuple": ((), "inputs", f"tuple with 0 items {LIST}"),
    "name in nothing": (5, "x", "int has no attribute 'x'; none is known"),
    "index of a tensor": (5, 0, "int with no items has no item 0"),
    "index of a dict": ({"inputs": "x"}, 0, "dict has no item 0; known: inputs"),
}


@pytest.mark.parametrize(("batch", "key", "message"), MISSING.values(), ids=MISSING)
def test_a_missing_item_is_an_error_that_says_what_is_there(batch, key, message):
    for access in (get_item, functools.partial(set_item, value="z")):
        with pytest.raises(LookupError) as refusal:
            access(batch, key)
        assert str(refusal.value) == f"a batch of type {message}"


@dataclasses.dataclass(frozen=True)
class Prepared:
    """Runs its own code when it is made, and has a field that no argument sets."""

    inputs: int
    scale: dataclasses.InitVar[int]
    rows: int = dataclasses.field(init=False, default=0)

    def __post_init__(self, scale):
        object.__setattr__(self, "inputs", self.inputs * scale)
        object.__setattr__(self, "rows", 7)


SETTER = (lambda batch: batch["inner"][0], lambda batch, value: {**batch, "inner": [value]})


def test_the_very_batch_comes_back():
    for batch, key in [(("x", "y"), 0), (["x", "y"], -1), ({"a": "x"}, "a"), ({"inner": ["x"]}, SETTER)]:
        state, swap = State(batch=batch), ItemSwap(key)
        swap.put(state, "new")
        assert state.batch_get_item(key) == "new"
        swap.back(state)
        assert state.batch is batch


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


def test_what_others_replaced_meanwhile_stays_and_nothing_is_put_back_twice_or_before_anything_was_put():
    state, swap = State(batch=("x", "y")), ItemSwap(0)
    swap.back(state)
    assert not swap.is_in
    swap.put(state, "new")
    assert swap.is_in
    state.batch_set_item(1, "theirs")
    swap.back(state)
    assert (state.batch, swap.is_in) == (("x", "theirs"), False)
    state.batch = ("other", "batch")
    swap.back(state)
    assert state.batch == ("other", "batch")


def test_a_second_put_puts_the_first_back_before_and_leaves_another_batch_as_it_is():
    for batch in (("x", "y"), ("z", "y")):
        state, swap = State(batch=("x", "y")), ItemSwap(0)
        swap.put(state, "first")
        state.batch = batch
        swap.put(state, "second")
        assert state.batch == ("second", "y")
        swap.back(state)
        assert state.batch is batch
    swap.put(state, "first")
    state.batch_set_item(1, "theirs")
    swap.put(state, state.batch[0] + " second")
    swap.back(state)
    assert state.batch == ("z", "theirs")
