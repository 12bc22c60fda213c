"""Batches of every kind of container: their rows are counted, taken and split, or refused with what to write."""

import re
import warnings
from collections import UserDict
from collections.abc import MutableMapping
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
from torch.utils.data import DataLoader

from engine_core import Batches
from engine_core.batch import map_batch, move_batch
from engine_core.errors import ArgumentError, ArgumentTypeError


class Pair(NamedTuple):
    inputs: Any
    targets: Any


@dataclass(frozen=True, slots=True)
class Slotted:
    inputs: object
    targets: object


class Encoding(UserDict):
    """Like Hugging Face's BatchEncoding."""

    def __getattr__(self, name):
        try:
            return self.data[name]
        except KeyError as error:
            raise AttributeError(name) from error


class Foreign(MutableMapping):
    """Keeps its items in its own dict, which `copy.copy` would share."""

    def __init__(self, **items):
        self.items_ = items

    def __getitem__(self, key):
        return self.items_[key]

    def __setitem__(self, key, value):
        self.items_[key] = value

    def __delitem__(self, key):
        del self.items_[key]

    def __iter__(self):
        return iter(self.items_)

    def __len__(self):
        return len(self.items_)


class Graph:
    """An object of the user's own."""


GRAPH, MOST = Graph(), 9
LEAVES = {
    "tensor": ("", lambda rows: torch.arange(MOST * 2.0).view(-1, 2)[rows]),
    "array": ("", lambda rows: np.arange(MOST)[rows]),
    "strings": ("", lambda rows: [f"n{row}" for row in rows]),
    "lists of words": ("", lambda rows: tuple(["w"] * row for row in rows)),
    "scalar": ("", lambda _: torch.tensor(3.0)),
    "number": ("", lambda _: 3),
    "None": ("", lambda _: None),
    "shared": ("shared", lambda _: torch.ones(MOST + 2)),
    "graph": ("shared", lambda _: GRAPH),
    "ragged": ("per_row", lambda rows: [torch.full((row % 3 + 1, 2), 1.0 * row) for row in rows]),
    "records": ("per_row", lambda rows: tuple({"box": torch.ones(row + 1, 4)} for row in rows)),
    "time first": ("dim", lambda rows: torch.arange(MOST * 4.0).view(4, MOST)[:, rows]),
}
CONTAINERS = {
    "tuple": ("01", lambda *items: (*items, torch.tensor(0.0))),
    "named tuple": (["inputs", "1"], Pair),
    "dataclass": (["inputs", "targets"], Slotted),
    "dict": ("xy", lambda x, y: {"x": x, "y": y}),
    "Hugging Face": ("xy", lambda x, y: Encoding(x=x, y=y)),
    "foreign mapping": ("xy", lambda x, y: Foreign(x=x, y=y)),
}
ITEMS = st.recursive(
    st.sampled_from(sorted(LEAVES)), lambda items: st.tuples(st.sampled_from(sorted(CONTAINERS)), items, items)
)
"""The names of leaves, and of containers with what is in them."""


def made(item, rows):
    """Return a batch of some rows."""
    if isinstance(item, str):
        return LEAVES[item][1](rows)
    kind, *items = item
    return CONTAINERS[kind][1](*[made(each, rows) for each in items])


def said(item, path=""):
    """Return what has to be said of a batch: the paths by the argument of `Batches`."""
    if isinstance(item, str):
        return {LEAVES[item][0]: [path]}
    kind, *items = item
    found = {}
    for name, each in zip(CONTAINERS[kind][0], items, strict=True):
        for argument, paths in said(each, f"{path}.{name}".lstrip(".")).items():
            found[argument] = found.get(argument, []) + paths
    return found


def plain(batch):
    """Return a batch with its types spelled out, to compare it with another."""
    if isinstance(batch, (torch.Tensor, np.ndarray)):
        return type(batch).__name__, batch.tolist()
    if isinstance(batch, (list, tuple)):
        return type(batch).__name__, [plain(item) for item in batch]
    if isinstance(batch, MutableMapping):
        return type(batch).__name__, {key: plain(value) for key, value in batch.items()}
    return ("Slotted", plain(batch.inputs), plain(batch.targets)) if isinstance(batch, Slotted) else batch


@given(st.data(), ITEMS, st.sampled_from(sorted(CONTAINERS)), st.integers(1, MOST))
def test_parts_have_their_rows_of_everything_and_splits_are_the_batch(data, item, container, count):
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
def test_samples_are_rows_and_are_not_copied(lengths, size):
    batch = [(torch.zeros(length, 2), {"boxes": torch.zeros(length, 4)}) for length in lengths]
    batches = Batches(samples=True)
    parts = batches.split(batch, size)
    assert batches.rows(batch) == len(lengths)
    assert [id(sample) for part in parts for sample in part] == [id(sample) for sample in batch]
    assert max(map(len, parts)) - min(map(len, parts)) <= 1 and {type(part) for part in parts} == {list}
    taken = batches.part(batch, torch.tensor([len(batch) - 1, 0]))
    assert [id(sample) for sample in taken] == [id(batch[-1]), id(batch[0])]


def test_a_type_of_ones_own_is_counted_and_cut_by_functions():
    def take(batch, rows):
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
            Batches(count=lambda batch, wrong=wrong: wrong).rows(batch)


Y = torch.zeros(8)


def test_a_dimension_counts_for_what_an_item_holds_and_parts_in_a_list_are_told_so():
    batch = {"state": (torch.zeros(2, 5), torch.zeros(2, 5, 3)), "parts": [torch.zeros(5), torch.zeros(5)]}
    batches = Batches(dim={"state": -2, "state.0": -1, "parts": 0})
    batch["state"] = (torch.zeros(2, 5), torch.zeros(2, 5, 3))
    assert batches.rows(batch) == 5
    part = batches.part(batch, slice(3))
    assert [item.shape for item in (*part["state"], *part["parts"])] == [(2, 3), (2, 3, 3), (3,), (3,)]


def test_tokens_are_those_of_the_mask_or_else_all_ids():
    ids, mask = torch.zeros(2, 3), torch.tensor([[1, 1, 0], [1, 0, 0]])
    asked = [
        (Encoding(input_ids=ids, attention_mask=mask), 3),
        ({"input_ids": ids.numpy(), "attention_mask": [[1, 1], [1]]}, 3),
        ({"input_ids": [torch.zeros(2), torch.zeros(5)]}, 7),
        ({"input_ids": ids, "attention_mask": torch.ones(2, 1, 3, 3)}, 6),  # which token sees which
        ({"x": ids}, None),
        ((ids, ids), None),
    ]
    assert [Batches().count_tokens(batch) for batch, _ in asked] == [tokens for _, tokens in asked]
    assert Batches(tokens=lambda batch: batch[0].numel()).count_tokens((ids, ids)) == 6


@given(ITEMS)
def test_moving_moves_every_tensor_and_nothing_else(item):
    batch, leaves, moved = (made(item, [1, 2]), "graph"), [], []
    map_batch(batch, leaves.append)
    map_batch(move_batch(batch, torch.device("meta")), moved.append)
    tensors = [isinstance(leaf, torch.Tensor) for leaf in leaves]
    assert [isinstance(leaf, torch.Tensor) and leaf.is_meta for leaf in moved] == tensors


def test_an_object_with_its_own_way_to_a_device_uses_it_and_a_packed_sequence_is_moved_as_torch_does_it():
    class Movable:
        def __init__(self, device="cpu"):
            self.device = str(device)

        def to(self, device):
            return Movable(device)

    graph = Movable()
    assert move_batch((graph, Y), torch.device("meta"))[0].device == "meta"
    assert [each.device for each in move_batch([graph, graph], torch.device("meta"))] == ["meta", "meta"]
    assert graph.device == "cpu"
    moved = move_batch((pack_sequence([torch.ones(3), torch.ones(2)]), Y), torch.device("meta"))[0]
    assert isinstance(moved, PackedSequence)
    assert (moved.data.device.type, moved.batch_sizes.device.type) == ("meta", "cpu")


ITSELF = {}
ITSELF["root"] = ITSELF
X = torch.zeros(8, 3)
TAKE = "say Batches(count=..., take=...), with a function that counts the rows of a batch and one that takes some"
REFUSED = [
    ({"t": Y[:1], "x": X}, "batch['t'] of shape (1,) has 1 row and batch['x'] of shape (8, 3)", "shared=('t',)"),
    ((X, {"state": torch.zeros(2, 8, 5)}), "batch[1]['state'] of shape (2, 8, 5) has 2 rows", "dim={'1.state': 1}"),
    ([X[:3], X[:5], X[:3]], "batch[1] of shape (5, 3) has 5 rows and batch[0] of shape (3, 3) has 3", "samples=True"),
    (((X[:3], X[:5]), Y[:2], Y[:2]), "batch[0][0] of shape (3, 3) has 3 rows and batch[1] of", "per_row=(0,)"),
    (([X[0]] * 8, [Y[:2]] * 8, ["n"] * 8), "batch[0] is a list of 8 items, the first of type Tensor", "per_row=(0, 1)"),
    (([X[0]] * 8, [Y[:2]] * 8, ["n"] * 8), "batch[0] is a list", "dim={0: 0}) if each has all rows in its first"),
    ([(X, "a"), (X, "b")], "batch is a list of 2 items, the first of type tuple", "samples=True) if each"),
    (GRAPH, "the rows of a batch of type Graph can't be counted: ", TAKE),
    (Pair(GRAPH, Y), "batch.inputs is of type Graph, whose rows", "shared=('inputs',)) if it belongs to no"),
    ((pack_sequence([X[0], X[0][:2]]), Y), "batch[0] is of type PackedSequence, whose rows can't be counted: ", TAKE),
    ((["a", "b"], [0, 1], 3), "a batch of type tuple holds no tensor", "say Batches(per_row=(0, 1)) if these lists"),
    (["a", "b"], "a batch of type list holds no tensor", "say Batches(samples=True) if each of its items is a row"),
    (ITSELF, "a batch of type dict holds itself: ", TAKE),
    ({"n": 3}, "a batch of type dict holds no tensor whose rows could be counted: ", TAKE),
]


@pytest.mark.parametrize(("batch", "what", "remedy"), REFUSED, ids=[what for _, what, _ in REFUSED])
def test_what_could_be_one_thing_or_another_is_refused_with_the_line_to_write(batch, what, remedy):
    rules = Batches()
    for ask in (rules.rows, lambda batch: rules.part(batch, slice(1)), lambda batch: rules.split(batch, 100)):
        with pytest.raises(ArgumentError) as error:
            ask(batch)
        assert str(error.value).startswith(what) and remedy in str(error.value)


def test_lists_that_could_be_rows_or_parts_are_refused_where_they_have_to_be_cut():
    batch = {"x": X, "words": [list("ab") * 4] * 8, "names": ["a"] * 8, "pair": (["a"] * 8, ["b"] * 8)}
    with pytest.raises(ArgumentError, match=r"batch\['words'\] is a list of 8 items, and so are the lists in it: say "):
        Batches().part(batch, slice(2))
    assert [*map(len, Batches(per_row=("words",)).part(batch, slice(2)).values())] == [2, 2, 2, 2]
    part = Batches(dim={"words": 0}).part(batch, slice(2))
    assert [len(part["words"]), *map(len, (*part["words"], *part["pair"]))] == [8, *[2] * 10]


@pytest.mark.parametrize("kind", ["sparse coo", "sparse csr", "nested"])
def test_what_can_be_counted_but_not_cut_is_refused_where_it_has_to_be_cut(kind):
    of_kind = {
        "sparse coo": X.to_sparse,
        "sparse csr": X.to_sparse_csr,
        "nested": lambda: torch.nested.nested_tensor([torch.ones(2)] * 8),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls them a prototype
        item = of_kind[kind]()
    assert (Batches().rows((item, Y)), Batches().rows({"x": item, "y": Y, "n": 1})) == (8, 8)
    for cut in (lambda: Batches().part((item, Y), slice(2)), lambda: Batches().part((item, Y), torch.tensor([1]))):
        with pytest.raises(ArgumentError) as error:
            cut()
        assert str(error.value) == f"batch[0] is a {kind} tensor, whose rows can't be cut: {TAKE}"


def test_all_tensors_agree_on_the_rows_and_what_torchs_own_collate_makes_has_all():
    eight = [[X, Y, Y], (torch.tensor(1.0), Y), {"meta": {"lengths": Y}, "x": X}, [Y, ("a",) * 8]]
    samples = [(X[0], 1), [X[0], X[1]], ("text", X[0]), {"x": X[0]}, Pair(X[0], Y[0])]
    eight += [batch for sample in samples for batch in DataLoader([sample] * 8, batch_size=8)]
    assert [Batches().rows(batch) for batch in eight] == [8] * 9
    assert Batches().rows((X[:0], Y[:0])) == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"shared": "x"}, "shared='x' has to be such as shared=('x',)"),
        ({"dim": {"x": "1"}}, "dim={'x': '1'} has to be such as dim={'x': 1}; a path is"),
        ({"per_row": (-1,)}, "per_row=(-1,) has to be such as per_row=('x',); a path is an index from 0 on"),
        ({"samples": 1}, "samples=1 has to be True or False"),
        ({"count": 3}, "count=3 has to be a function of a batch"),
        ({"shared": (0,), "dim": {"0": 1}}, "'0' is in dim too; it can be in one of shared"),
        ({"samples": True, "shared": (0,)}, "samples says what all rows are, so leave out shared"),
    ],
    ids=str,
)
def test_arguments_that_can_not_work_are_refused(given, message):
    with pytest.raises((ArgumentError, ArgumentTypeError), match=f"^Batches: {re.escape(message)}"):
        Batches(**given)


@pytest.mark.parametrize(
    ("batches", "batch", "message"),
    [
        (Batches(samples=True), {"x": X}, "Batches(samples=True) is for batches that are lists, not a dict"),
        (Batches(per_row=(0,)), ("text", Y), "batch[0] is 'text' (str), and Batches(per_row=...) is for lists with"),
        (
            Batches(dim={"input": 1}),
            {"inputs": X},
            "Batches(dim=...) names 'input', which is not in the batch; did you",
        ),
        (Batches(dim={1: 1}), (X, Y), "batch[1] of shape (8,) has no dimension 1, where Batches(dim=...) looks for"),
    ],
    ids=str,
)
def test_a_batch_that_is_not_as_the_user_says_is_refused(batches, batch, message):
    with pytest.raises(ArgumentError, match=f"^{re.escape(message)}"):
        batches.rows(batch)


def test_what_is_said_is_shown_and_a_mapping_that_cannot_be_written_to_becomes_a_dict():
    assert repr(Batches(shared=["x", 0], samples=False)) == "Batches(shared=('x', 0))"
    assert Batches().part(MappingProxyType({"x": Y}), torch.tensor([0])).keys() == {"x"}
