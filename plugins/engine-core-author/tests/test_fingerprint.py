"""A fingerprint sees each change of a State field, names the leaf, and calls an equal copy equal."""

import copy
import dataclasses
import enum
from collections import OrderedDict, UserDict, UserList, deque
from collections.abc import Sequence
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from parts import linear, net
from torch import nn

from engine_core import State
from engine_core_author.audit import changed_leaves, fingerprint, fingerprint_state


class Pair(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Sample:
    x: torch.Tensor
    name: str = "a"


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x


class History(deque):
    def __init__(self, items=()):
        super().__init__(items)
        self.kept = True


class Rows(Sequence):
    """A sequence that reads its items from a file, as it were."""

    def __init__(self, *rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, place):
        raise AssertionError("read")


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


def zeros():
    return torch.zeros(2)


def ones():
    return torch.ones(2)


def changes(before, after):
    return changed_leaves(fingerprint(before), fingerprint(after))


@pytest.mark.parametrize(
    ("before", "after", "leaves"),
    [
        ((zeros(), zeros()), (zeros(), ones()), ("[1]",)),
        ([zeros()], [ones()], ("[0]",)),
        ({"x": zeros(), "y": 1}, {"x": ones(), "y": 2}, ("x", "y")),
        ({"a": {"b": [zeros()]}}, {"a": {"b": [ones()]}}, ("a/b[0]",)),
        ((zeros(), {"y": zeros()}), (zeros(), {"y": ones()}), ("[1]/y",)),
        ({1: zeros(), "1": zeros()}, {1: ones(), "1": zeros()}, ("[1]",)),
        (OrderedDict(x=zeros()), OrderedDict(x=ones()), ("x",)),
        (UserDict(x=zeros()), UserDict(x=ones()), ("x",)),
        (MappingProxyType({"x": zeros()}), MappingProxyType({"x": ones()}), ("x",)),
        (Pair(zeros(), 1), Pair(ones(), 1), ("x",)),
        ([Pair(zeros(), 1)], [Pair(zeros(), 2)], ("[0].y",)),
        (Sample(zeros()), Sample(ones()), ("x",)),
        ([Sample(zeros())], [Sample(zeros(), "b")], ("[0].name",)),
        (SimpleNamespace(x=zeros()), SimpleNamespace(x=ones()), ("x",)),
        (Slotted(zeros()), Slotted(ones()), ("x",)),
        (deque([zeros()]), deque([ones()]), ("[0]",)),
        (History([zeros()]), History([ones()]), ("[0]",)),
        (deque([1, 2]), deque([2, 1]), ("",)),
        (UserList([zeros()]), UserList([ones()]), ("data[0]",)),
        ([Rows(zeros())], [Rows(ones())], ("[0].rows[0]",)),
        (bytearray(b"ab"), bytearray(b"ac"), ("",)),
        (["a", "b"], ["a", "c"], ("",)),
        (list(range(1000)), [*range(999), 0], ("",)),
        ({"a", "b"}, {"a", "c"}, ("",)),
        (b"ab", b"ac", ("",)),
        (Colour.RED, Colour.BLUE, ("",)),
        (1, True, ("",)),
        (0.0, -0.0, ("",)),
        (torch.float16, torch.float32, ("",)),
    ],
)
def test_a_change_is_named_by_the_path_of_its_leaf_and_a_copy_is_not_a_change(before, after, leaves):
    assert changes(before, after) == leaves
    assert changes(before, _copied(before)) == ()


def _copied(value):
    return MappingProxyType(dict(value)) if isinstance(value, MappingProxyType) else copy.deepcopy(value)


@pytest.mark.parametrize(
    ("before", "after", "leaves"),
    [
        ((zeros(),), [zeros()], ("",)),
        ((zeros(), zeros()), (zeros(),), ("", "[1]")),
        ({"x": zeros()}, {"x": zeros(), "y": zeros()}, ("", "y")),
        ((1, 2), Pair(1, 2), ("",)),
        ((zeros(), 2), Pair(zeros(), 2), ("", "[0]", "[1]", "x", "y")),
        (None, zeros(), ("",)),
    ],
)
def test_another_container_another_length_and_another_kind_are_changes(before, after, leaves):
    assert changes(before, after) == leaves


def test_only_the_identity_of_an_object_inside_an_object_counts():
    inner = SimpleNamespace(x=1)
    before = fingerprint(SimpleNamespace(inner=inner))
    inner.x = 2
    assert changed_leaves(before, fingerprint(SimpleNamespace(inner=inner))) == ()
    assert changed_leaves(before, fingerprint(SimpleNamespace(inner=SimpleNamespace(x=2)))) == ("inner",)


@pytest.mark.parametrize(
    "make", [deque, UserList, lambda items: Rows(*items), lambda items: dict(enumerate(items)).values()]
)
def test_a_container_inside_an_object_is_read(make):
    before = fingerprint(SimpleNamespace(kept=make([1, 2])))
    assert changed_leaves(before, fingerprint(SimpleNamespace(kept=make([1, 2])))) == ()
    assert changed_leaves(before, fingerprint(SimpleNamespace(kept=make([1, 3])))) != ()


def test_the_keys_of_a_dict_are_read_as_a_set():
    assert changes({1: "a", 2: "b"}.keys(), {2: "a", 1: "b"}.keys()) == ()
    assert changes({1: "a"}.keys(), {2: "a"}.keys()) == ("",)


def test_a_value_that_holds_itself_is_read_once():
    ring = [zeros()]
    ring.append(ring)
    assert list(fingerprint(ring)) == ["", "[0]", "[1]"]


def test_a_generator_is_not_used_up():
    numbers = iter([1, 2])
    fingerprint({"x": numbers})
    assert list(numbers) == [1, 2]


def test_a_numpy_array_counts_by_form_and_content():
    numpy = pytest.importorskip("numpy")
    array = numpy.arange(6)
    assert changes(array, array.copy()) == ()
    assert changes({"x": array}, {"x": array.reshape(2, 3)}) == ("x",)
    assert changes({"x": array}, {"x": array[::-1]}) == ("x",)


@pytest.mark.parametrize("field", ["batch", "outputs", "loss", "metrics", "loss_fn"])
def test_each_field_is_read_separately(field):
    state = State(model=linear())
    before = fingerprint_state(state)
    setattr(state, field, {"x": ones()})
    after = fingerprint_state(state)
    assert {name for name in before if changed_leaves(before[name], after[name])} == {field}


def test_an_optimizer_that_was_given_an_equal_parameter_has_another():
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = fingerprint(optimizer)
    optimizer.param_groups[0]["params"][0] = nn.Parameter(model.weight.detach().clone())
    assert changed_leaves(before, fingerprint(optimizer)) == ("param_groups[0]/params",)


def test_reading_everything_changes_nothing_and_draws_nothing():
    model = net(0.5)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 4)).sum().backward()
    optimizer.step()
    x = torch.randn(4, 4, requires_grad=True)
    loss = (x * 2).sum()
    state = State(model=model, optimizers=optimizer, batch=(x,), outputs=x * 2, loss=loss)
    versions = {name: tensor._version for name, tensor in model.state_dict(keep_vars=True).items()}
    kept, drawn = copy.deepcopy(optimizer.state_dict()), torch.get_rng_state()
    fingerprint_state(state)
    assert {name: tensor._version for name, tensor in model.state_dict(keep_vars=True).items()} == versions
    assert torch.equal(torch.get_rng_state(), drawn) and changes(kept, optimizer.state_dict()) == ()
    loss.backward()
    assert torch.equal(x.grad, torch.full((4, 4), 2.0))
