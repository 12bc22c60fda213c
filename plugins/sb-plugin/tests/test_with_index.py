"""The dataset that gives each example with its index."""

import pickle
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from engine_core.errors import ArgumentError, ArgumentTypeError
from sb_plugin.indexed import WithIndex


class Pair(NamedTuple):
    x: int
    y: int


class Unsized:
    def __getitem__(self, index):
        return "abc"[index]


class Batched(Dataset[Any]):
    """Fetches whole batches, in a way of the test's choice."""

    def __init__(self, fetch):
        self.fetch = fetch

    def __getitem__(self, index):
        raise AssertionError

    def __getitems__(self, indices):
        return self.fetch(indices)


class Stream(IterableDataset[int]):
    def __iter__(self):
        return iter(range(3))


def tens():
    """Return examples whose value is ten times their index."""
    return TensorDataset(torch.arange(0, 70, 10))


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ((5, 6), (5, 6, 1)),
        ([5, 6], (5, 6, 1)),
        (Pair(5, 6), (5, 6, 1)),
        (MappingProxyType({"x": 5}), {"x": 5, "index": 1}),
        ("ab", ("ab", 1)),
        (7, (7, 1)),
    ],
)
def test_each_kind_of_item_gets_the_index(item, expected):
    given = WithIndex([None, item])
    for found in (given[1], given.__getitems__([1])[0]):
        assert found == expected
        assert type(found) is type(expected)


def test_the_item_of_the_dataset_is_left_as_it_was():
    items = [{"x": 5}, [6]]
    assert [WithIndex(items)[0], WithIndex(items)[1]] == [{"x": 5, "index": 0}, (6, 1)]
    assert items == [{"x": 5}, [6]]


def test_a_mapping_with_such_a_key_already_is_refused():
    with pytest.raises(ArgumentError, match=r"example 1 of list has a key 'index' already: .* index_key='index'"):
        WithIndex([{}, {"index": 9}])[1]


def test_any_whole_number_is_an_index_and_one_from_the_back_is_counted_from_the_front():
    given = WithIndex("abcd")
    assert [given[-1], given[-4]] == [("d", 3), ("a", 0)]
    assert given.__getitems__([-2]) == [("c", 2)]
    _, index = given[torch.tensor(2)]
    assert (index, type(index)) == (2, int)


def test_it_has_a_length_where_the_dataset_has_one_and_else_an_index_stays_as_it_is():
    given = WithIndex(Unsized())
    assert [given[-1], given[2]] == [("c", -1), ("c", 2)]
    assert len(WithIndex("abcd")) == 4
    with pytest.raises(TypeError, match="'Unsized' has no len"):
        len(given)


def test_a_loader_pairs_each_example_with_its_index_in_workers_too():
    own = torch.Generator().manual_seed(0)
    loader = DataLoader(WithIndex(tens()), batch_size=3, shuffle=True, num_workers=2, generator=own)
    batches = list(loader)
    values, ids = (torch.cat(parts) for parts in zip(*batches, strict=True))
    assert [len(batch) for batch in batches] == [2] * 3
    assert torch.equal(values, 10 * ids)
    assert sorted(ids.tolist()) == list(range(7)) != ids.tolist()
    assert ids.dtype == torch.int64


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (Subset(WithIndex(tens()), [4, 2]), [[40, 4], [20, 2]]),
        (WithIndex(Subset(tens(), [4, 2])), [[40, 0], [20, 1]]),
        (Subset(WithIndex(tens()), torch.tensor([4, 2])), [[40, 4], [20, 2]]),
    ],
)
def test_the_index_counts_in_the_dataset_that_was_given(dataset, expected):
    values, ids = next(iter(DataLoader(dataset, batch_size=2)))
    assert torch.stack([values, ids], 1).tolist() == expected
    assert [[int(value), index] for value, index in (dataset[0], dataset[1])] == expected


def test_a_dataset_that_fetches_whole_batches_does_so_once_for_each():
    asked = []

    def fetch(indices):
        asked.append(indices)
        return [(index * 10,) for index in indices]

    given = WithIndex(Batched(fetch))
    batches = list(DataLoader(given, batch_sampler=[[3, 1], [2]]))
    assert [[part.tolist() for part in batch] for batch in batches] == [[[30, 10], [3, 1]], [[20], [2]]]
    assert asked == [[3, 1], [2]]


@pytest.mark.parametrize(
    ("gives", "what"), [([1], "a list of 1"), ({"x": 1, "y": 2}, "a dict of 2"), (None, "a NoneType")]
)
def test_a_fetched_batch_that_is_not_a_list_of_examples_is_refused(gives, what):
    with pytest.raises(ArgumentTypeError, match=f"of Batched gave {what} for 2 indices: .* a list"):
        WithIndex(Batched(lambda _: gives)).__getitems__([0, 1])


def test_it_can_be_pickled_and_shows_no_attribute_of_the_dataset_as_its_own():
    twin = pickle.loads(pickle.dumps(WithIndex("abc")))
    assert [twin[index] for index in range(len(twin))] == [("a", 0), ("b", 1), ("c", 2)]
    given = WithIndex(inner := tens())
    assert given.dataset is inner
    assert not hasattr(given, "tensors")


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (Stream(), "Stream is an iterable dataset, .* set index_key"),
        (DataLoader(tens()), "DataLoader has no __getitem__, .*: wrap its dataset"),
        (range(3).__iter__(), "range_iterator has no __getitem__, .*: give a map-style dataset"),
    ],
)
def test_what_has_no_index_is_refused(dataset, message):
    with pytest.raises(ArgumentTypeError, match=message):
        WithIndex(dataset)


def test_a_list_of_indices_is_refused():
    with pytest.raises(ArgumentTypeError, match=r"\[1, 2\] \(list\) can't be the id of one example: .* batch_size"):
        WithIndex(Subset(TensorDataset(torch.arange(4)), [0, 1, 2]))[[1, 2]]
