"""A tensor in pieces: what one process holds of it, and whether pieces make up a whole. Knows no files."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import torch

from ..errors import CheckpointError

Shape: TypeAlias = tuple[int, ...]


class Piece(NamedTuple):
    """What one process holds of a tensor that is spread over several.

    Args:
        tensor: the local part, which may be empty.
        offset: where it begins in the whole tensor, one number for each dimension.
        shape: that of the whole tensor.
    """

    tensor: torch.Tensor
    offset: Shape
    shape: Shape


def cut(tensor: torch.Tensor, rank: int, size: int) -> torch.Tensor | Piece:
    """Return a rank's piece of a tensor that all ranks have alike: some of its rows, at most one more than another's.

    A tensor without dimensions stays as it is.

    Example:
        >>> cut(torch.arange(5), rank=1, size=2)
        Piece(tensor=tensor([3, 4]), offset=(3,), shape=(5,))
    """
    if not tensor.dim():
        return tensor
    each, more = divmod(len(tensor), size)
    begin = rank * each + min(rank, more)
    rows = tensor[begin : begin + each + (rank < more)]
    return Piece(rows, (begin, *(0,) * (tensor.dim() - 1)), tuple(tensor.shape))


class Box(NamedTuple):
    """A part of a tensor: where it begins, and its size, in each dimension."""

    offset: Shape
    size: Shape

    def shared_with(self, other: Box) -> Box | None:
        """Return what both contain; None: nothing."""
        begin = tuple(map(max, self.offset, other.offset))
        ends = zip(self._end(), other._end(), strict=True)
        size = tuple(min(pair) - at for pair, at in zip(ends, begin, strict=True))
        return Box(begin, size) if all(length > 0 for length in size) else None

    def seen_from(self, offset: Shape) -> tuple[slice, ...]:
        """Return its place in a tensor that begins at `offset`."""
        return tuple(slice(a - o, a - o + n) for a, o, n in zip(self.offset, offset, self.size, strict=True))

    def is_within(self, shape: Shape) -> bool:
        """Does a tensor of this shape contain it?"""
        return len(self.offset) == len(self.size) == len(shape) and all(
            min(at, n) >= 0 and at + n <= whole for at, n, whole in zip(self.offset, self.size, shape, strict=True)
        )

    def _end(self) -> Shape:
        return tuple(at + length for at, length in zip(self.offset, self.size, strict=True))

    def __str__(self) -> str:
        return f"{list(self.size)} at {list(self.offset)}"[:160]


def check_whole(name: str, shape: Shape, boxes: Sequence[Box]) -> None:
    """Raise unless the boxes make up a tensor of this shape, with each element once.

    Raises:
        CheckpointError: with the name of the tensor and what is wrong.
    """
    whole = f"the tensor {name!r:.200} of shape {list(shape)!r:.80}"
    for box in boxes:
        if not box.is_within(shape):
            raise CheckpointError(f"{whole} has a piece outside of it: {box}")
    if (pair := _overlapping(boxes)) is not None:
        raise CheckpointError(f"{whole} has pieces that overlap: {pair[0]} and {pair[1]}")
    there, needed = sum(math.prod(box.size) for box in boxes), math.prod(shape)
    if not boxes or there != needed:
        raise CheckpointError(f"{whole} is not whole: its {len(boxes)} pieces hold {there} of {needed!r:.40} elements")


def _overlapping(boxes: Sequence[Box]) -> tuple[Box, Box] | None:
    """Return two that share an element; those of a tensor without dimensions are told by their number.

    Boxes are put in order along the dimension that is cut most often, and each is compared with those that begin before
    its end: one or none where rows are spread over many processes.
    """
    dimensions = range(len(boxes[0].offset)) if boxes else range(0)
    cut = max(dimensions, key=lambda i: len({box.offset[i] for box in boxes}), default=None)
    if cut is None:
        return None
    in_order = sorted(boxes, key=lambda box: box.offset[cut])
    for place, one in enumerate(in_order, 1):
        end = one.offset[cut] + one.size[cut]
        for other in itertools.takewhile(lambda box: box.offset[cut] < end, in_order[place:]):  # noqa: B023
            if one.shared_with(other) is not None:
                return one, other
    return None
