"""Batches of every kind of container: counted, split, picked from, moved, and never changed in place."""

from collections import OrderedDict, UserDict
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from engine_core.batch import count_rows, map_batch, move_batch, slice_rows, split_batch, take_rows
from engine_core.errors import ArgumentError

from .parts import same

X, Y = torch.arange(12.0).reshape(6, 2), torch.arange(6)
NAMES = ["a", "b", "c", "d", "e", "f"]


class Pair(NamedTuple):
    inputs: Any
    targets: Any


@dataclass
class Data:
    inputs: Any
    targets: Any
    note: str = "n"


@dataclass(frozen=True)
class Frozen:
    inputs: Any
    targets: Any


@dataclass(frozen=True, slots=True)
class Slotted:
    inputs: Any
    targets: Any


class Encoding(UserDict[str, Any]):
    """Like Hugging Face's BatchEncoding."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self.data[name]
        except KeyError as error:
            raise AttributeError(name) from error


class Foreign(MutableMapping[str, Any]):
    """Keeps its items in its own dict, which `copy.copy` would share."""

    def __init__(self, **items: Any) -> None:
        self.items_ = items

    def __getitem__(self, key: str) -> Any:
        return self.items_[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.items_[key] = value

    def __delitem__(self, key: str) -> None:
        del self.items_[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.items_)

    def __len__(self) -> int:
        return len(self.items_)


BATCHES: dict[str, Callable[[Any], Any]] = {
    "tuple": lambda i: (X[i], Y[i]),
    "list": lambda i: [X[i], Y[i]],
    "tensor": lambda i: X[i],
    "namedtuple": lambda i: Pair(X[i], Y[i]),
    "dataclass": lambda i: Data(X[i], Y[i]),
    "frozen dataclass": lambda i: Frozen(X[i], Y[i]),
    "dataclass with slots": lambda i: Slotted(X[i], Y[i]),
    "dict": lambda i: {"inputs": X[i], "targets": Y[i]},
    "ordered dict": lambda i: OrderedDict(inputs=X[i], targets=Y[i]),
    "Hugging Face": lambda i: Encoding(inputs=X[i], targets=Y[i]),
    "foreign mapping": lambda i: Foreign(inputs=X[i], targets=Y[i]),
    "nested": lambda i: ({"a": X[i], "b": [X[i], Y[i]]}, (Y[i],)),
    "strings": lambda i: (X[i], [NAMES[j] for j in range(6)[i]]),
    "strings in a tuple": lambda i: {"x": X[i], "id": tuple(NAMES[j] for j in range(6)[i])},
    "strings alone": lambda i: [NAMES[j] for j in range(6)[i]],
    "two lists of strings": lambda i: ([NAMES[j] for j in range(6)[i]], [NAMES[j] for j in range(6)[i]]),
    "lists of words": lambda i: (Y[i], [["w"] * j for j in range(6)[i]]),
    "arrays": lambda i: (X[i].numpy(), Y[i].numpy()),
    "list of samples": lambda i: [{"box": X[: j + 1]} for j in range(6)[i]],
    "detection": lambda i: ([X[: j + 1] for j in range(6)[i]], [{"box": X[j:]} for j in range(6)[i]]),
    "not a row": lambda i: (X[i], torch.tensor(3.0), None, "text", torch.ones(4)),
}


@pytest.fixture(params=BATCHES)
def kind(request: pytest.FixtureRequest) -> Any:
    return BATCHES[request.param]


def plain(batch: Any) -> Any:
    """Return a batch with its types spelled out, to compare it with another."""
    if isinstance(batch, (torch.Tensor, np.ndarray)):
        return type(batch).__name__, batch.tolist()
    if isinstance(batch, (list, tuple)):
        return type(batch).__name__, [plain(item) for item in batch]
    if isinstance(batch, MutableMapping):
        return type(batch).__name__, {key: plain(value) for key, value in batch.items()}
    if hasattr(batch, "inputs"):
        return type(batch).__name__, plain(batch.inputs), plain(batch.targets)
    return batch


def test_rows_are_counted(kind: Any) -> None:
    assert count_rows(kind(slice(6))) == 6
    assert count_rows(kind(slice(1))) == 1


def test_a_slice_is_of_the_same_type_and_all_its_rows_belong_together(kind: Any) -> None:
    assert plain(slice_rows(kind(slice(6)), 6, 1, 3)) == plain(kind(slice(1, 3)))


def test_picked_rows_are_the_same_of_everything(kind: Any) -> None:
    assert plain(take_rows(kind(slice(6)), 6, torch.tensor([1, 3, 5]))) == plain(kind(slice(1, 6, 2)))


def test_microbatches_are_slices(kind: Any) -> None:
    pieces = split_batch(kind(slice(6)), 4)
    assert [(plain(piece), share) for piece, share in pieces] == [
        (plain(kind(slice(4))), 4 / 6),
        (plain(kind(slice(4, 6))), 2 / 6),
    ]


def test_the_loaders_own_batch_is_left_as_it_was(kind: Any) -> None:
    batch = kind(slice(6))
    before = plain(batch)
    split_batch(batch, 4)
    take_rows(batch, 6, torch.tensor([0]))
    move_batch(batch, torch.device("meta"))
    assert plain(batch) == before


def test_moving_moves_every_tensor_and_nothing_else(kind: Any) -> None:
    devices, leaves = list[Any](), list[Any]()
    map_batch(move_batch(kind(slice(6)), torch.device("meta")), leaves.append)
    map_batch(kind(slice(6)), devices.append)
    tensors = [isinstance(leaf, torch.Tensor) for leaf in devices]
    assert [isinstance(leaf, torch.Tensor) and leaf.is_meta for leaf in leaves] == tensors


def test_a_mapping_that_cannot_be_written_to_becomes_a_dict() -> None:
    assert slice_rows(MappingProxyType({"x": Y}), 6, 0, 2).keys() == {"x"}


def test_an_object_with_its_own_way_to_a_device_uses_it() -> None:
    class Graph:
        device = "cpu"

        def to(self, device: torch.device) -> "Graph":
            moved = Graph()
            moved.device = str(device)
            return moved

    graph = Graph()
    assert move_batch((graph, Y), torch.device("meta"))[0].device == "meta"
    assert graph.device == "cpu"


def test_a_packed_sequence_is_moved_as_torch_does_it() -> None:
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    moved = move_batch((packed, Y), torch.device("meta"))[0]
    assert isinstance(moved, PackedSequence)
    assert (moved.data.device.type, moved.batch_sizes.device.type) == ("meta", "cpu")


def test_the_shallowest_tensor_counts() -> None:
    assert count_rows({"meta": {"lengths": torch.ones(3)}, "x": X}) == 6


def test_a_tensor_counts_before_samples_beside_it() -> None:
    assert count_rows({"crops": [{"box": X}, {"box": X}], "x": X}) == 6


def test_a_tensor_without_dimensions_has_no_rows() -> None:
    assert count_rows((torch.tensor(1.0), X)) == 6


def test_a_batch_without_rows_has_zero() -> None:
    assert count_rows((torch.zeros(0, 3), torch.zeros(0))) == 0
    assert count_rows({"x": torch.zeros(0, 3)}) == 0


@pytest.mark.parametrize("batch", [None, 3, "text", (None, 3), ("a", "b"), {"a": 1}], ids=str)
def test_what_has_no_rows_is_refused(batch: Any) -> None:
    with pytest.raises(ArgumentError) as error:
        count_rows(batch)
    assert str(error.value) == (
        f"a batch of type {type(batch).__name__} holds no tensor whose rows could be counted; "
        "give tensors in tuples, lists, mappings or dataclasses"
    )


def test_a_batch_that_fits_is_the_loaders_own() -> None:
    batch = (X, Y)
    ((piece, share),) = split_batch(batch, 6)
    assert piece is batch
    assert share is None


def test_tensors_that_are_not_split_are_the_loaders_own() -> None:
    shared = torch.ones(4)
    (first, _), (second, _) = split_batch((X, shared), 4)
    assert first[1] is shared and second[1] is shared
    assert same(first[0], X[:4])
