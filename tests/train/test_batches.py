"""Batches of every kind of container: their rows are counted, taken and split, or refused with what to write."""

from collections import OrderedDict, UserDict
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from engine_core import Batches
from engine_core.batch import map_batch, move_batch, take_rows
from engine_core.errors import ArgumentError


class Pair(NamedTuple):
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


class Graph:
    """An object of the user's own."""


GRAPH, MOST = Graph(), 9
LEAVES: dict[str, tuple[str, Callable[[list[int]], Any]]] = {
    "tensor": ("", lambda rows: torch.arange(MOST * 2.0).view(-1, 2)[rows]),
    "array": ("", lambda rows: np.arange(MOST)[rows]),
    "strings": ("", lambda rows: [f"n{row}" for row in rows]),
    "lists of words": ("", lambda rows: tuple(["w"] * row for row in rows)),
    "other strings": ("", lambda _: ["a"] * (MOST + 1)),
    "scalar": ("", lambda _: torch.tensor(3.0)),
    "number": ("", lambda _: 3),
    "None": ("", lambda _: None),
    "shared": ("shared", lambda _: torch.ones(MOST + 2)),
    "graph": ("shared", lambda _: GRAPH),
    "ragged": ("per_row", lambda rows: [torch.full((row % 3 + 1, 2), 1.0 * row) for row in rows]),
    "records": ("per_row", lambda rows: tuple({"box": torch.ones(row + 1, 4)} for row in rows)),
    "time first": ("dim", lambda rows: torch.arange(MOST * 4.0).view(4, MOST)[:, rows]),
}
CONTAINERS: dict[str, tuple[Sequence[str], Callable[[Any, Any], Any]]] = {
    "tuple": ("01", lambda *items: (*items, torch.tensor(0.0))),
    "named tuple": (["inputs", "1"], Pair),
    "dataclass": (["inputs", "targets"], Slotted),
    "dict": ("xy", lambda x, y: {"x": x, "y": y}),
    "ordered dict": ("xy", lambda x, y: OrderedDict(x=x, y=y)),
    "Hugging Face": ("xy", lambda x, y: Encoding(x=x, y=y)),
    "foreign mapping": ("xy", lambda x, y: Foreign(x=x, y=y)),
}
ITEMS: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from(sorted(LEAVES)), lambda items: st.tuples(st.sampled_from(sorted(CONTAINERS)), items, items)
)
"""The names of leaves, and of containers with what is in them."""


def made(item: Any, rows: list[int]) -> Any:
    """Return a batch of some rows."""
    if isinstance(item, str):
        return LEAVES[item][1](rows)
    kind, *items = item
    return CONTAINERS[kind][1](*[made(each, rows) for each in items])


def said(item: Any, path: str = "") -> dict[str, list[str]]:
    """Return what has to be said of a batch: the paths by the argument of `Batches`."""
    if isinstance(item, str):
        return {LEAVES[item][0]: [path]}
    kind, *items = item
    found: dict[str, list[str]] = {}
    for name, each in zip(CONTAINERS[kind][0], items, strict=True):
        for argument, paths in said(each, f"{path}.{name}".lstrip(".")).items():
            found[argument] = found.get(argument, []) + paths
    return found


def plain(batch: Any) -> Any:
    """Return a batch with its types spelled out, to compare it with another."""
    if isinstance(batch, (torch.Tensor, np.ndarray)):
        return type(batch).__name__, batch.tolist()
    if isinstance(batch, (list, tuple)):
        return type(batch).__name__, [plain(item) for item in batch]
    if isinstance(batch, MutableMapping):
        return type(batch).__name__, {key: plain(value) for key, value in batch.items()}
    return ("Slotted", plain(batch.inputs), plain(batch.targets)) if isinstance(batch, Slotted) else batch


@given(st.data(), ITEMS, st.sampled_from(sorted(CONTAINERS)), st.integers(1, MOST))
def test_parts_have_their_rows_of_everything_and_splits_are_the_batch(
    data: st.DataObject, item: Any, container: str, count: int
) -> None:
    recipe, rows = (container, "tensor", item), list(range(count))
    batch, paths = made(recipe, rows), said(recipe)
    batches = Batches(
        shared=tuple(paths.get("shared", ())),
        per_row=tuple(paths.get("per_row", ())),
        dim=dict.fromkeys(paths.get("dim", ()), 1),
    )
    before = plain(batch)
    assert batches.rows(batch) == count

    start, stop = (data.draw(st.integers(0, count)) for _ in range(2))
    assert plain(batches.part(batch, slice(start, stop))) == plain(made(recipe, rows[start:stop]))
    some = data.draw(st.lists(st.sampled_from(rows), max_size=MOST))
    assert plain(batches.part(batch, torch.tensor(some, dtype=torch.long))) == plain(made(recipe, some))

    size = data.draw(st.integers(1, MOST + 1))
    parts = batches.split(batch, size)
    sizes = [batches.rows(part) for part in parts]
    ends = [sum(sizes[:number]) for number in range(len(sizes) + 1)]
    assert len(parts) == -(-count // size) and max(sizes) <= size and max(sizes) - min(sizes) <= 1
    chunks = [rows[start:stop] for start, stop in pairwise(ends)]
    assert [plain(part) for part in parts] == [plain(made(recipe, chunk)) for chunk in chunks]
    assert [*chain(*chunks)] == rows and plain(batch) == before


@given(st.lists(st.integers(1, 4), min_size=1, max_size=MOST), st.integers(1, MOST))
def test_samples_are_rows_and_are_not_copied(lengths: list[int], size: int) -> None:
    batch = [(torch.zeros(length, 2), {"boxes": torch.zeros(length, 4)}) for length in lengths]
    batches = Batches(samples=True)
    parts = batches.split(batch, size)
    assert batches.rows(batch) == len(lengths)
    assert [id(sample) for part in parts for sample in part] == [id(sample) for sample in batch]
    assert max(map(len, parts)) - min(map(len, parts)) <= 1 and {type(part) for part in parts} == {list}
    taken = batches.part(batch, torch.tensor([len(batch) - 1, 0]))
    assert [id(sample) for sample in taken] == [id(batch[-1]), id(batch[0])]


def test_a_type_of_ones_own_is_counted_and_cut_by_functions() -> None:
    def take(batch: Any, rows: Any) -> Any:
        words, offsets = batch
        texts = [words[start:stop] for start, stop in zip(offsets, [*offsets[1:], len(words)], strict=True)]
        chosen = texts[rows] if isinstance(rows, slice) else [texts[row] for row in rows]
        starts = [sum(map(len, chosen[:number])) for number in range(len(chosen))]
        return torch.cat(chosen), torch.tensor(starts)

    batch = torch.arange(13), torch.tensor([0, 3, 5, 10])
    batches = Batches(count=lambda batch: len(batch[1]), take=take)
    assert batches.rows(batch) == 4
    assert [plain(part) for part in batches.split(batch, 3)] == [
        plain((torch.arange(5), torch.tensor([0, 3]))),
        plain((torch.arange(5, 13), torch.tensor([0, 5]))),
    ]
    with pytest.raises(ArgumentError, match=r"Batches\(count=\.\.\.\) alone can't cut .* say Batches\(.*take=\.\.\.\)"):
        Batches(count=lambda batch: 4).split(batch, 4)
    with pytest.raises(ArgumentError, match=r"Batches\(take=\.\.\.\) returned 4 rows at slice\(0, 2\)"):
        Batches(count=lambda batch: 4, take=take).split(batch, 2)
    for wrong in (2.5, -1, None):
        with pytest.raises(ArgumentError, match=f"returned {wrong} for a batch of type tuple; .* whole number"):
            Batches(count=lambda batch, wrong=wrong: wrong).rows(batch)  # type: ignore[misc]


Y = torch.zeros(8)


def test_a_dimension_counts_for_what_an_item_holds_and_parts_in_a_list_are_told_so() -> None:
    batch = {"state": (torch.zeros(2, 5), torch.zeros(2, 5, 3)), "parts": [torch.zeros(5), torch.zeros(5)]}
    batches = Batches(dim={"state": -2, "state.0": -1, "parts": 0})
    batch["state"] = (torch.zeros(2, 5), torch.zeros(2, 5, 3))
    assert batches.rows(batch) == 5
    part = batches.part(batch, slice(3))
    assert [item.shape for item in (*part["state"], *part["parts"])] == [(2, 3), (2, 3, 3), (3,), (3,)]


def test_tokens_are_those_of_the_mask_or_else_all_ids() -> None:
    ids, mask = torch.zeros(2, 3), torch.tensor([[1, 1, 0], [1, 0, 0]])
    asked: list[tuple[Any, int | None]] = [
        (Encoding(input_ids=ids, attention_mask=mask), 3),
        ({"input_ids": ids.numpy(), "attention_mask": [[1, 1], [1]]}, 3),
        ({"input_ids": [torch.zeros(2), torch.zeros(5)]}, 7),
        ({"input_ids": ids, "attention_mask": torch.ones(2, 1, 3, 3)}, 6),  # which token sees which
        ({"x": ids}, None),
        ((ids, ids), None),
    ]
    assert [Batches().count_tokens(batch) for batch, _ in asked] == [tokens for _, tokens in asked]
    assert Batches(tokens=lambda batch: batch[0].numel()).count_tokens((ids, ids)) == 6


def test_what_is_said_is_shown() -> None:
    assert repr(Batches(shared=["x", 0], samples=False)) == "Batches(shared=('x', 0))"  # type: ignore[arg-type]
    assert hash(Batches(dim={"x": 1})) and Batches(dim={"x": 1}) != Batches(dim={"x": 2})


def test_a_mapping_that_cannot_be_written_to_becomes_a_dict() -> None:
    assert take_rows(MappingProxyType({"x": Y}), 8, torch.tensor([0])).keys() == {"x"}


@given(ITEMS)
def test_moving_moves_every_tensor_and_nothing_else(item: Any) -> None:
    batch, leaves, moved = (made(item, [1, 2]), "graph"), list[Any](), list[Any]()
    map_batch(batch, leaves.append)
    map_batch(move_batch(batch, torch.device("meta")), moved.append)
    tensors = [isinstance(leaf, torch.Tensor) for leaf in leaves]
    assert [isinstance(leaf, torch.Tensor) and leaf.is_meta for leaf in moved] == tensors


def test_an_object_with_its_own_way_to_a_device_uses_it() -> None:
    class Movable:
        device = "cpu"

        def to(self, device: torch.device) -> "Movable":
            moved = Movable()
            moved.device = str(device)
            return moved

    graph = Movable()
    assert move_batch((graph, Y), torch.device("meta"))[0].device == "meta"
    assert [each.device for each in move_batch([graph, graph], torch.device("meta"))] == ["meta", "meta"]
    assert graph.device == "cpu"


def test_a_packed_sequence_is_moved_as_torch_does_it() -> None:
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    moved = move_batch((packed, Y), torch.device("meta"))[0]
    assert isinstance(moved, PackedSequence)
    assert (moved.data.device.type, moved.batch_sizes.device.type) == ("meta", "cpu")
