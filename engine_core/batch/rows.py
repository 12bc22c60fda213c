"""What is left of the former rules, for the loop and the metrics until these ask `state.batches`."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from ..errors import ArgumentError
from .batches import Batches, count_rows
from .items import copy_mapping


def are_samples(batch: Any) -> bool:
    """Is this batch a list of samples, whose rows are its items, and not a container of parts?

    Its type decides: a list whose items are all mappings, all tuples, or all instances of one dataclass is one. Parts
    are what torch's own collate makes of several strings or mappings per sample: a list of tuples of nothing but
    strings, and one of mappings without a common key.

    Example:
        >>> image = torch.zeros(3, 4, 4)
        >>> are_samples([(image, "cat"), (image, "dog")]), are_samples([image, image])
        (True, False)
    """
    if not isinstance(batch, list) or not batch or isinstance(batch[0], torch.Tensor):
        return False
    if not all(issubclass(kind, tuple) for kind in set(map(type, batch))):
        return _are_records(batch) and not (len(batch) > 1 and isinstance(batch[0], Mapping) and _are_disjoint(batch))
    return not all(isinstance(value, (str, bytes)) for item in batch for value in item)


def split_batch(batch: Any, size: int) -> list[tuple[Any, float | None]]:
    """Return microbatches of at most `size` rows, each with its share of the rows, None if the batch stays whole."""
    parts = Batches().split(batch, size)
    if len(parts) == 1:
        return [(batch, None)]
    rows = [count_rows(part) for part in parts]
    return [(part, own / sum(rows)) for part, own in zip(parts, rows, strict=True)]


def map_rows(batch: Any, rows: int, on_rows: Callable[[Any], Any]) -> Any:
    """Return the batch with `on_rows` applied to its tensors, lists of values and lists of samples of `rows` rows.

    Raises:
        ArgumentError: for a list of tensors whose first dimensions differ.

    Example:
        >>> map_rows((torch.ones(2), ["a", "b"], "kept"), 2, len)
        (2, 2, 'kept')
    """

    def parts(item: Any) -> Any:
        beside_samples = any(_are_samples_inside(part) and len(part) == rows for part in _items(item))
        return _rebuild(item, lambda part: walk(part, beside_samples=beside_samples))

    def walk(item: Any, *, beside_samples: bool = False) -> Any:
        if _is_array(item):
            return on_rows(item) if item.shape and item.shape[0] == rows else item
        is_list = isinstance(item, (list, tuple)) and len(item) == rows
        if is_list and (beside_samples or _are_samples_inside(item) or not _is_container(item)):
            return on_rows(item)
        return parts(item) if _is_container(item) else item

    _check_dimensions(batch)
    if are_samples(batch):
        return on_rows(batch) if len(batch) == rows else batch
    return parts(batch) if _is_batch(batch) else walk(batch)


def _check_dimensions(batch: Any) -> None:
    """Raise for a list of tensors that may be parts or samples, before it is cut in the wrong place."""
    if len(different := _first_dimensions(batch)) > 1:
        raise ArgumentError(
            f"a list of {len(batch)} tensors whose first dimensions differ ({different[0]}, {different[1]}) can't be "
            "split by microbatch_size, nor can rows be taken from it: let the loader's collate_fn make it a tuple if "
            "they are parts of the batch, or [(tensor,), ...] if each is a sample"
        )


def _first_dimensions(batch: Any) -> list[int]:
    """Return the different first dimensions in a list of tensors; of anything else there are none."""
    if not isinstance(batch, list) or not all(map(_is_array, batch)):
        return []
    return list(dict.fromkeys(item.shape[0] for item in batch if item.shape))


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


def _are_samples_inside(item: Any) -> bool:
    """Is this a list of samples within a batch? `zip(*samples)`, a common collate, makes tuples of their mappings."""
    return are_samples(item) or (isinstance(item, tuple) and _are_records(item))


def _are_records(items: list[Any] | tuple[Any, ...]) -> bool:
    """Are these all mappings, or all instances of one dataclass?"""
    kinds = set(map(type, items))
    if all(issubclass(kind, Mapping) for kind in kinds):
        return bool(items)
    lineage = type(items[0]).__mro__
    return any(dataclasses.is_dataclass(base) and all(issubclass(kind, base) for kind in kinds) for base in lineage)


def _are_disjoint(mappings: list[Any]) -> bool:
    return not set(mappings[0]).intersection(*mappings[1:])


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
