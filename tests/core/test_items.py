import dataclasses
from collections import OrderedDict, UserDict
from collections.abc import MutableMapping
from types import MappingProxyType, SimpleNamespace
from typing import NamedTuple

import pytest

from engine_core.batch import get_item, set_item


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


def second(batch):
    return batch[1]


def replace_second(batch, value):
    batch[1] = value


CASES = {
    "tuple": (("x", "y"), 1, ("x", "z")),
    "tuple from the end": (("x", "y"), -1, ("x", "z")),
    "list": (["x", "y"], 1, ["x", "z"]),
    "dict": ({"inputs": "x", "targets": "y"}, "targets", {"inputs": "x", "targets": "z"}),
    "namedtuple by name": (Pair("x", "y"), "targets", Pair("x", "z")),
    "namedtuple by index": (Pair("x", "y"), 1, Pair("x", "z")),
    "dataclass": (Batch("x", "y"), "targets", Batch("x", "z")),
    "attribute": (SimpleNamespace(inputs="x", targets="y"), "targets", SimpleNamespace(inputs="x", targets="z")),
    "encoding": (Encoding(inputs="x", targets="y"), "targets", Encoding(inputs="x", targets="z")),
    "output by name": (Output(inputs="x", targets="y"), "targets", Output(inputs="x", targets="z")),
    "foreign": (Foreign(inputs="x", targets="y"), "targets", Foreign(inputs="x", targets="z")),
    "functions": (["x", "y"], (second, replace_second), ["x", "z"]),
}


@pytest.mark.parametrize(("batch", "key", "changed"), CASES.values(), ids=CASES)
def test_an_item_is_read_and_replaced_in_every_container(batch, key, changed):
    assert get_item(batch, key) == "y"
    result = set_item(batch, key, "z")
    assert result == changed
    assert type(result) is type(batch)


@pytest.mark.parametrize("name", [name for name in CASES if name != "functions"])
def test_the_loaders_own_container_is_not_changed(name):
    batch, key, _ = CASES[name]
    set_item(batch, key, "z")
    assert get_item(batch, key) == "y"


def test_a_mapping_that_cannot_be_written_to_becomes_a_dict():
    read_only = MappingProxyType({"inputs": "x", "targets": "y"})
    assert set_item(read_only, "targets", "z") == {"inputs": "x", "targets": "z"}


def test_a_setter_may_return_another_batch():
    assert set_item(("x", "y"), (second, lambda batch, value: (batch[0], value)), "z") == ("x", "z")


MISSING = {
    "index": (("x", "y"), 2, "a batch of type tuple with 2 items has no item 2"),
    "key": ({"targets": "y"}, "target", "a batch of type dict has no item 'target'; did you mean 'targets'?"),
    "field": (Pair("x", "y"), "target", "a batch of type Pair has no attribute 'target'; did you mean 'targets'?"),
    "attribute": (Batch("x", "y"), "labels", "a batch of type Batch has no attribute 'labels'; known: inputs, targets"),
    "name in a list": (
        ["x", "y"],
        "inputs",
        "a batch of type list with 2 items has no attribute 'inputs'; give an index, 0 for the first",
    ),
    "name in a tuple": (
        (),
        "x",
        "a batch of type tuple with 0 items has no attribute 'x'; give an index, 0 for the first",
    ),
    "name in nothing": (5, "x", "a batch of type int has no attribute 'x'; none is known"),
    "index of a tensor": (5, 0, "a batch of type int with no items has no item 0"),
    "index of a dict": ({"inputs": "x"}, 0, "a batch of type dict has no item 0; known: inputs"),
}


@pytest.mark.parametrize(("batch", "key", "message"), MISSING.values(), ids=MISSING)
@pytest.mark.parametrize("access", [get_item, lambda batch, key: set_item(batch, key, "z")], ids=["get", "set"])
def test_a_missing_item_is_an_error_that_says_what_is_there(access, batch, key, message):
    with pytest.raises(LookupError) as refusal:
        access(batch, key)
    assert str(refusal.value) == message


@dataclasses.dataclass(frozen=True)
class Prepared:
    """Runs its own code when it is made, and has a field that no argument sets."""

    inputs: int
    scale: dataclasses.InitVar[int]
    rows: int = dataclasses.field(init=False, default=0)

    def __post_init__(self, scale):
        object.__setattr__(self, "inputs", self.inputs * scale)
        object.__setattr__(self, "rows", 7)


def test_a_dataclass_is_not_constructed_again():
    batch = Prepared(2, 10)
    changed = set_item(batch, "inputs", 5)
    assert (changed.inputs, changed.rows) == (5, 7)
    assert (batch.inputs, type(changed)) == (20, Prepared)


class Meters:
    """Keeps an item behind a property."""

    def __init__(self, inputs):
        self._inputs = inputs

    @property
    def inputs(self):
        return self._inputs

    @inputs.setter
    def inputs(self, value):
        self._inputs = value


def test_a_property_with_a_setter_is_an_attribute():
    batch = Meters(1)
    changed = set_item(batch, "inputs", 2)
    assert (batch.inputs, changed.inputs) == (1, 2)
