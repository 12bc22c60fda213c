"""The sequences of a batch: which items have them, and shorter ones in their place. Independent of the schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from engine_core.arguments import check_key, item_at
from engine_core.batch import Batches, BatchKey, get_item, set_item
from engine_core.errors import ArgumentError, ArgumentTypeError
from engine_core.objective import ModelLoss, Objective

__all__ = ["check_keys", "cut_up", "guess_keys", "lengths_of", "truncated"]

NAME = "sequence_warmup"
Keys = tuple[BatchKey, ...]


def check_keys(keys: object) -> Keys | None:
    """Return the keys of the items to cut, None where they are to be guessed."""
    if keys is None:
        return None
    if isinstance(keys, str) or not isinstance(keys, Sequence) or not keys:
        raise ArgumentTypeError(f"keys={keys!r} has to be a list of what to cut, such as ['input_ids', 'labels']")
    for key in keys:
        check_key("keys", key)
    return tuple(keys)


def truncated(batch: Any, keys: Keys, length: int) -> Any:
    """Return a batch with the first `length` places of the sequences (n, L, ...), and all else as it is.

    Example:
        >>> truncated((torch.arange(6).view(1, 6), "kept"), (0,), 4)
        (tensor([[0, 1, 2, 3]]), 'kept')
    """
    for key in keys:
        batch = set_item(batch, key, get_item(batch, key)[:, :length].contiguous())
    return batch


def cut_up(batch: Any, keys: Keys, length: int, batches: Batches) -> Any:
    """Return a batch with the sequences (n, L, ...) as (n * L / length, length, ...), in the same order.

    What else has rows is repeated, so that each piece has what its row had.

    Args:
        length: a divisor of L.
        batches: what the rows of the batch are.

    Example:
        >>> cut_up((torch.arange(6).view(1, 6), torch.tensor([7])), (0,), 3, Batches())
        (tensor([[0, 1, 2],
                [3, 4, 5]]), tensor([7, 7]))
    """
    whole = [get_item(batch, key) for key in keys]
    pieces = whole[0].shape[1] // length
    cut = {id(item) for item in whole}
    batch = batches.map_rows(batch, lambda item, _: item if id(item) in cut else _repeated(item, pieces))
    for key, item in zip(keys, whole, strict=True):
        batch = set_item(batch, key, item.reshape(-1, length, *item.shape[2:]))
    return batch


def lengths_of(batch: Any, keys: Keys) -> tuple[int, int]:
    """Return the shape (n, L) with which the items to cut begin.

    Raises:
        ArgumentError, ArgumentTypeError: (a ValueError, a TypeError) for items that are not such tensors, or not alike.
    """
    items = [item_at(batch, "keys", key) for key in keys]
    for key, item in zip(keys, items, strict=True):
        if not isinstance(item, torch.Tensor):
            raise ArgumentTypeError(f"keys: {key!r} is a {type(item).__name__}, not a tensor (n, length, ...) to cut")
        if item.dim() < 2 or item.shape[:2] != items[0].shape[:2]:
            raise ArgumentError(
                f"keys: {key!r} has the shape {tuple(item.shape)}, and {keys[0]!r} has {tuple(items[0].shape)}: what "
                "is cut has to begin alike, (n, length, ...); leave out of keys what has no length"
            )
    return items[0].shape[0], items[0].shape[1]


def guess_keys(objective: Objective, batch: Any) -> Keys:
    """Return the keys of what the model and the loss take of a batch, if all of that is sequences of one length.

    These are whole numbers (n, length), such as tokens, masks and labels; beside one, also tensors (n, length, d).

    Raises:
        ArgumentError: (a ValueError) for a batch of which that is not certain, with the line to write.
    """
    held = _items_of(batch)
    taken = _taken(objective, held)
    found = {key: held.get(key) for key in taken}
    arrays = {key: item for key, item in found.items() if isinstance(item, torch.Tensor) and item.dim()}
    tokens = {key: item for key, item in arrays.items() if item.dim() == 2 and not item.is_floating_point()}
    if not tokens:
        raise _uncertain("finds no whole numbers (n, length) in what the model gets", found, arrays)
    shape = next(iter(tokens.values())).shape
    for key, item in found.items():
        if _is_plain(item):
            continue
        vectors = isinstance(item, torch.Tensor) and item.dim() == 3 and item.shape[2] != shape[1]
        if not (key in tokens or vectors) or arrays[key].shape[:2] != shape:
            raise _uncertain(f"can't tell whether to cut {key!r}, {_described(item)}", found, arrays)
    for key, item in held.items():
        if key not in found and isinstance(item, torch.Tensor) and item.shape[:2] == shape:
            raise _uncertain(f"can't tell whether to cut {key!r}, which is not given to the model", held, arrays)
    return tuple(arrays)


def _items_of(batch: Any) -> dict[Any, Any]:
    """Return the items of a batch by index, key or field."""
    if isinstance(batch, Mapping):
        return dict(batch)
    if isinstance(batch, (tuple, list)):
        return dict(enumerate(batch))
    if is_dataclass(batch):
        return {field.name: getattr(batch, field.name) for field in fields(batch)}
    return {}


def _taken(objective: Objective, held: Mapping[Any, Any]) -> list[Any]:
    """Return the keys of what model and loss take; those of all items where that is not said."""
    said = [objective.inputs, objective.targets]
    is_said = type(objective) is Objective and objective.loss_fn is not None
    if not is_said or isinstance(objective, ModelLoss) or {"*", "**"}.intersection(map(str, said)):
        return list(held)
    return [key for each in said for key in (each if isinstance(each, tuple) else (each,))]


def _is_plain(item: Any) -> bool:
    """Is this nothing that could be cut: a string or a list of them, a number, a tensor without dimensions?"""
    if isinstance(item, torch.Tensor):
        return not item.dim()
    if isinstance(item, (list, tuple)):
        return all(isinstance(each, str) for each in item)
    return item is None or isinstance(item, (str, int, float))


def _described(item: Any) -> str:
    return f"a tensor {tuple(item.shape)}" if isinstance(item, torch.Tensor) else f"of type {type(item).__name__}"


def _uncertain(what: str, found: Mapping[Any, Any], arrays: Mapping[Any, torch.Tensor]) -> ArgumentError:
    """Return the error for a batch whose sequences are not certain, with those that may be meant."""
    shapes = [tuple(item.shape[:2]) for item in arrays.values() if item.dim() > 1]
    likely = [k for k, i in found.items() if isinstance(i, torch.Tensor) and i.dim() > 1 and i.shape[:2] in shapes[:1]]
    return ArgumentError(
        f"{NAME} {what}: name what is to be cut, all of shape (n, length, ...), such as "
        f"keys={likely or ['input_ids', 'labels']!r}; what it does not name stays whole"
    )


def _repeated(item: Any, times: int) -> Any:
    """Return rows of a tensor, an array or a list, each so many times in a row."""
    if isinstance(item, torch.Tensor):
        return item.repeat_interleave(times, 0)
    if hasattr(item, "repeat"):  # NumPy's
        return item.repeat(times, 0)
    return type(item)(row for row in item for _ in range(times))
