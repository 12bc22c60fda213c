"""Batches as trees of tensors: count, move, split and pick rows. Knows no training."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from ..errors import ArgumentError
from .items import copy_mapping


def map_batch(batch: Any, on_leaf: Callable[[Any], Any]) -> Any:
    """Return the batch with `on_leaf` applied to what its tuples, lists, mappings and dataclasses hold.

    Containers keep their type (named tuples, dataclasses and Hugging Face's mappings too) and are not changed in
    place. A list or tuple of plain values, such as strings, is one leaf; so is anything else that is not a tensor.

    Example:
        >>> map_batch({"x": torch.ones(2), "id": ["a", "b"]}, len)
        {'x': 2, 'id': 2}
    """

    def walk(item: Any) -> Any:
        return _rebuild(item, walk) if _is_container(item) else on_leaf(item)

    return _rebuild(batch, walk) if _is_batch(batch) else on_leaf(batch)


def count_rows(batch: Any) -> int:
    """Return the number of samples in a batch: the first dimension of the tensor (or array) nearest to the top.

    A list of mappings is a list of samples, as detection models take them. Without tensors or samples it is the
    length of the first list of values.

    Raises:
        ArgumentError: if there is none of these.

    Example:
        >>> count_rows((torch.zeros(8, 3), torch.zeros(8)))
        8
    """
    if type(batch) is tuple or type(batch) is list:
        try:
            shape = batch[0].shape  # half the cost of size(0)
            if isinstance(shape, tuple):
                return shape[0]  # type: ignore[no-any-return]
        except (LookupError, AttributeError):  # not a tensor, or one without dimensions
            pass
    level, lengths = [batch], list[int]()
    opens: Callable[[Any], bool] = _is_batch
    while level:
        tensors = [item.shape[0] for item in level if _is_array(item) and item.shape]
        samples = [len(item) for item in level if _are_samples(item)]
        if tensors or samples:
            return (tensors or samples)[0]
        lengths += [len(item) for item in level if isinstance(item, (list, tuple)) and not opens(item)]
        level, opens = [item for above in level if opens(above) for item in _items(above)], _is_container
    if not lengths:
        raise ArgumentError(
            f"a batch of type {type(batch).__name__} holds no tensor whose rows could be counted; "
            "give tensors in tuples, lists, mappings or dataclasses"
        )
    return lengths[0]


def move_batch(batch: Any, device: torch.device) -> Any:
    """Return the batch with its tensors, and whatever else has a `to`, on `device`.

    Copies from pinned memory are asynchronous.
    """
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)

    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.to(device, non_blocking=True)
        return leaf.to(device) if callable(getattr(leaf, "to", None)) else leaf

    return map_batch(batch, move)


def slice_rows(batch: Any, rows: int, start: int, stop: int) -> Any:
    """Return rows `start` to `stop` of everything in the batch that has `rows` rows; the rest stays whole."""
    return _map_rows(batch, rows, lambda leaf: leaf[start:stop])


def take_rows(batch: Any, rows: int, index: torch.Tensor) -> Any:
    """Return the rows at `index` (k,) of everything in the batch that has `rows` rows; the rest stays whole.

    Example:
        >>> take_rows((torch.arange(4), "kept"), 4, torch.tensor([1, 3]))
        (tensor([1, 3]), 'kept')
    """

    def take(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            index_there = index.to(leaf.device)
            # index_select is faster by half, but loses the memory format.
            return leaf.index_select(0, index_there) if leaf.is_contiguous() else leaf[index_there]
        picked = index.tolist()
        return leaf[picked] if _is_array(leaf) else type(leaf)(leaf[i] for i in picked)

    return _map_rows(batch, rows, take)


def split_batch(batch: Any, size: int) -> list[tuple[Any, float | None]]:
    """Return microbatches of at most `size` rows, each with its share of the rows, None if the batch stays whole.

    Example:
        >>> [(part.tolist(), share) for part, share in split_batch(torch.arange(4), 3)]
        [([0, 1, 2], 0.75), ([3], 0.25)]
    """
    rows = count_rows(batch)
    if rows <= size:
        return [(batch, None)]
    starts = range(0, rows, size)
    return [(slice_rows(batch, rows, i, i + size), (min(i + size, rows) - i) / rows) for i in starts]


def _map_rows(batch: Any, rows: int, on_rows: Callable[[Any], Any]) -> Any:
    """Apply `on_rows` to tensors, lists of values and lists of samples with `rows` rows."""

    def walk(item: Any, opens: Callable[[Any], bool] = _is_container, *, beside_samples: bool = False) -> Any:
        if _is_array(item):
            return on_rows(item) if item.shape and item.shape[0] == rows else item
        is_list = isinstance(item, (list, tuple)) and len(item) == rows
        if is_list and (beside_samples or _are_samples(item) or not opens(item)):
            return on_rows(item)
        if not opens(item):
            return item
        hold_samples = any(_are_samples(i) and len(i) == rows for i in _items(item))
        return _rebuild(item, lambda i: walk(i, beside_samples=hold_samples))

    return walk(batch, _is_batch)


def _is_array(item: Any) -> bool:
    """Is this a tensor, or something sliced and indexed like one, such as an array or a TensorDict?"""
    return isinstance(item, torch.Tensor) or isinstance(getattr(item, "shape", None), tuple)


def _is_container(item: Any) -> bool:
    """Is this searched for tensors? A list of values, or of lists of values, is not: each belongs to one sample."""
    if _is_array(item) or isinstance(item, torch.nn.utils.rnn.PackedSequence):
        return False
    if isinstance(item, (list, tuple)):
        return hasattr(item, "_fields") or any(_is_array(i) or _is_container(i) for i in item)
    return isinstance(item, Mapping) or (dataclasses.is_dataclass(item) and not isinstance(item, type))


def _is_batch(batch: Any) -> bool:
    """Is this searched as a whole batch? Then neither a tuple nor a list of lists is a list of values."""
    if isinstance(batch, list):
        return _is_container(batch) or any(isinstance(item, (list, tuple)) for item in batch)
    return isinstance(batch, tuple) or _is_container(batch)


def _are_samples(item: Any) -> bool:
    return isinstance(item, (list, tuple)) and bool(item) and all(isinstance(sample, Mapping) for sample in item)


def _items(batch: Any) -> Iterator[Any]:
    """Yield what a container holds."""
    if isinstance(batch, (list, tuple)):
        yield from batch
    elif isinstance(batch, Mapping):
        yield from batch.values()
    else:
        yield from (getattr(batch, field.name) for field in dataclasses.fields(batch))


def _rebuild(batch: Any, change: Callable[[Any], Any]) -> Any:
    """Return a container of the same type with each item changed."""
    if isinstance(batch, (list, tuple)):
        items = [change(item) for item in batch]
        return type(batch)(*items) if hasattr(batch, "_fields") else type(batch)(items)
    if isinstance(batch, Mapping):
        changed = copy_mapping(batch)
        for key in batch:
            changed[key] = change(batch[key])
        return changed
    changed = copy.copy(batch)
    for field in dataclasses.fields(batch):
        object.__setattr__(changed, field.name, change(getattr(batch, field.name)))  # it may be frozen
    return changed
