"""A dataset that gives each example with its index. Independent of tables, batches and the engine."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, Subset

from engine_core.errors import ArgumentError, ArgumentTypeError

__all__ = ["WithIndex", "ids_in_order"]


class WithIndex(Dataset[Any]):
    """Give each example of a dataset together with its index, its id in tables of losses.

    A tuple or list becomes a plain tuple with the index as last item; so does a named tuple, which loses its
    names. A mapping becomes a dict with a further key `"index"`, and anything else the pair `(item, index)`.

    Args:
        dataset: a map-style dataset. Wrap the whole one before splitting it: the index is that in this dataset.

    Raises:
        ArgumentTypeError: (a TypeError) for a dataset whose examples have no index.

    Example:
        >>> import torch
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> pairs = TensorDataset(torch.rand(5, 3), torch.arange(5) % 2)
        >>> inputs, targets, ids = next(iter(DataLoader(WithIndex(pairs), batch_size=3)))
        >>> ids
        tensor([0, 1, 2])
    """

    def __init__(self, dataset: Any) -> None:
        name = type(dataset).__name__
        if isinstance(dataset, IterableDataset):
            raise ArgumentTypeError(
                f"{name} is an iterable dataset, whose examples have no index: let it yield a fixed number "
                "for each example itself, and set index_key to where that is"
            )
        if not hasattr(dataset, "__getitem__"):
            remedy = "wrap its dataset" if hasattr(dataset, "dataset") else "give a map-style dataset"
            raise ArgumentTypeError(f"{name} has no __getitem__, so its examples have no index: {remedy}")
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        return self._paired(self.dataset[index], index)

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        """Return the examples of a batch, all at once if the dataset can do that."""
        fetch = getattr(self.dataset, "__getitems__", None)
        items = fetch(indices) if callable(fetch) else [self.dataset[index] for index in indices]
        if not isinstance(items, list) or len(items) != len(indices):
            size = f" of {len(items)}" if hasattr(items, "__len__") else ""
            raise ArgumentTypeError(
                f"__getitems__ of {type(self.dataset).__name__} gave a {type(items).__name__}{size} for "
                f"{len(indices)} indices: it has to return a list with one example for each"
            )
        return [self._paired(item, index) for item, index in zip(items, indices, strict=True)]

    def _paired(self, item: Any, index: Any) -> Any:
        place = self._place(index)
        if isinstance(item, (tuple, list)):
            return (*item, place)
        if not isinstance(item, Mapping):
            return item, place
        if "index" in item:
            raise ArgumentError(
                f"example {place} of {type(self.dataset).__name__} has a key 'index' already: rename it, or, if it is "
                "the example's number, leave WithIndex out and set index_key='index'"
            )
        return {**item, "index": place}

    def _place(self, index: Any) -> int:
        """Return an index as a whole number, counted from the front if the length is known."""
        try:
            place = operator.index(index)
        except TypeError as error:
            raise ArgumentTypeError(
                f"{index!r} ({type(index).__name__}) can't be the id of one example: fetch examples by whole numbers, "
                "in a DataLoader with batch_size, not with a sampler of lists"
            ) from error
        if place >= 0:
            return place
        try:
            return place + len(self.dataset)
        except (TypeError, NotImplementedError):
            return place


def ids_in_order(dataset: Any, size: int) -> torch.Tensor:
    """Return the ids of the examples of a dataset (n,), in its order: their places, or those of a subset in the whole.

    Example:
        >>> ids_in_order(Subset(WithIndex([7, 8, 9]), [2, 0]), 2)
        tensor([2, 0])
    """
    if isinstance(dataset, Subset):
        whole = ids_in_order(dataset.dataset, len(dataset.dataset))  # type: ignore[arg-type]  # as Subset needs
        return whole[torch.as_tensor(dataset.indices)]
    return torch.arange(size)
