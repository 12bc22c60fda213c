"""What a row of a batch is: counted, cut and split by a strict rule, or as the user says. Needs no torch."""

from __future__ import annotations

import itertools
import math
from collections import UserDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError, ArgumentTypeError
from ..time import as_number
from .items import BatchKey, get_item, is_array, rebuilt
from .places import TAKE, Place, Role, Said, agreed_rows, check_paths, role_of

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Batches:
    """What the rows of a batch are, where its tensors do not tell; one for all loaders of a run.

    Without a word from the user, all tensors and arrays in a batch have one row for each of its rows in dimension 0, at
    each depth of its tuples, lists, mappings and dataclasses. Tensors without dimensions, plain values and None belong
    to no row. So does a list of strings or numbers, unless it has one for each row. What could be read in two ways is
    refused, with the line to write.

    A path names an item: `"x"`, `0`, or `"meta.scale"` for one further down; `0` and `"0"` are the same, and `""` is
    the batch.

    Args:
        shared: paths of items that belong to no row, and stay whole.
        per_row: paths of lists that have one entry for each row, such as boxes, graphs, or images of any size.
        samples: a batch is a list of samples, and its rows are its items.
        dim: the dimension of the rows, by path, where it is not 0; for a container it counts for what it holds, and a
            list of tensors then holds parts. `{"": 1}` is for batches that are time-first throughout.
        count: returns the number of rows of a batch of a type of your own.
        take: returns some rows of a batch, at a slice or at the positions (k,) in a tensor.
        tokens: returns the number of tokens of a batch, for lengths in `tok`. None: the sum of `attention_mask`, or
            else the elements of `input_ids`, in a mapping that has one of them.

    Example:
        >>> import torch
        >>> batch = {"x": torch.zeros(3, 2), "temperature": torch.ones(1)}
        >>> Batches(shared=("temperature",)).rows(batch)
        3
        >>> Batches().rows(batch)
        Traceback (most recent call last):
        engine_core.errors.ArgumentError: batch['temperature'] of shape (1,) has 1 row and batch['x'] of shape (3, 2)...
    """

    shared: tuple[str | int, ...] = ()
    per_row: tuple[str | int, ...] = ()
    samples: bool = False
    dim: Mapping[str | int, int] = field(default_factory=dict, hash=False)
    count: Callable[[Any], int] | None = None
    take: Callable[[Any, slice | torch.Tensor], Any] | None = None
    tokens: Callable[[Any], int] | None = None

    def __post_init__(self) -> None:
        for name in ("shared", "per_row", "dim"):
            object.__setattr__(self, name, check_paths(name, getattr(self, name)))
        for name, paths in (("per_row", self.per_row), ("dim", self.dim)):
            if (twice := [path for path in paths if self._said[str(path)][0] != name]) != []:
                raise ArgumentError(f"Batches: {twice[0]!r} is in {name} too; it can be in one of shared, per_row, dim")
        object.__setattr__(self, "samples", as_number(self.samples))
        if not isinstance(self.samples, bool):
            raise ArgumentTypeError(f"Batches: samples={self.samples!r} has to be True or False")
        for name in ("count", "take", "tokens"):
            if (function := getattr(self, name)) is not None and not callable(function):
                raise ArgumentTypeError(f"Batches: {name}={function!r} has to be a function of a batch")
        ways = [name for name in ("samples", "count") if getattr(self, name)]
        others = [name for name in ("shared", "per_row", "dim") if getattr(self, name)]
        if ways and len(ways + others) > 1:
            raise ArgumentError(
                f"Batches: {ways[0]} says what all rows are, so leave out {' and '.join(ways[1:] + others)}"
            )

    @cached_property
    def _said(self) -> Said:
        said = {str(path): (name, 0) for name in ("per_row", "shared") for path in getattr(self, name)}
        return {**{str(path): ("dim", dim) for path, dim in self.dim.items()}, **said}

    @cached_property
    def _follows_rule(self) -> bool:
        return not (self._said or self.samples or self.count)

    def __repr__(self) -> str:
        """Name what differs from the strict rule."""
        said = ", ".join(f"{name}={value!r}" for name, value in self.settings().items())
        return f"Batches({said})"

    def settings(self) -> dict[str, Any]:
        """Return the arguments that were given."""
        given = {each.name: getattr(self, each.name) for each in fields(self) if each.init}
        return {name: value for name, value in given.items() if value}

    def rows(self, batch: Any) -> int:
        """Return the number of rows of a batch.

        Raises:
            ArgumentError: (a ValueError) where they can't be told, with the item, the shapes and the line to write.

        Example:
            >>> import torch
            >>> Batches().rows((torch.zeros(8, 3), torch.zeros(8))), Batches(samples=True).rows(["a", "b"])
            (8, 2)
        """
        if self._follows_rule:
            try:  # the usual batches, without the search
                if (kind := type(batch)) is tuple or kind is list:
                    if len(batch) == 2 and (rows := batch[0].shape[0]) == batch[1].shape[0]:
                        return rows  # type: ignore[no-any-return]
                    found = {item.shape[0] for item in batch}
                elif kind is dict or isinstance(batch, UserDict):
                    found = {item.shape[0] for item in batch.values()}
                else:
                    found = {batch.shape[0]}
                if len(found) == 1:
                    return found.pop()  # type: ignore[no-any-return]
            except (LookupError, AttributeError, TypeError, RuntimeError):  # not all are tensors that have dimensions
                pass
        if self.count is not None:
            return _whole("count", self.count(batch), batch)
        if self.samples:
            if not isinstance(batch, (list, tuple)):
                raise ArgumentError(
                    f"Batches(samples=True) is for batches that are lists, not a {type(batch).__name__}"
                )
            return len(batch)
        return agreed_rows(batch, self._said)

    def part(self, batch: Any, rows: slice | torch.Tensor) -> Any:
        """Return some rows of a batch; what belongs to no row stays whole, and containers keep their type.

        Args:
            rows: a slice, or the positions of the rows, a tensor (k,).

        Example:
            >>> import torch
            >>> Batches().part((torch.arange(4), "kept"), torch.tensor([1, 3]))
            (tensor([1, 3]), 'kept')
        """
        if self.take is not None:
            return self.take(batch, rows)
        return self.map_rows(batch, lambda item, dim: _taken(item, dim, rows))

    def part_of(self, batch: Any, key: BatchKey, rows: slice | torch.Tensor) -> Any:
        """Return some rows of one item of a batch, as `part` does; others are not copied if it is one tensor."""
        item, found = get_item(batch, key), []

        def take(each: Any, dim: int) -> Any:
            if each is item:
                found.append(_taken(each, dim, rows))
            return each

        if is_array(item) and self.take is None:
            self.map_rows(batch, take)
        return found[0] if found else get_item(self.part(batch, rows), key)

    def split(self, batch: Any, size: int) -> list[Any]:
        """Return parts of at most `size` rows, as few as possible, whose sizes differ by at most one.

        A batch that has no more rows is its only part.

        Example:
            >>> import torch
            >>> [len(part) for part in Batches().split(torch.arange(9), 4)]
            [3, 3, 3]
        """
        rows = self.rows(batch)
        if self.count is not None and self.take is None:
            raise ArgumentError(
                f"Batches(count=...) alone can't cut a batch of type {type(batch).__name__}: say {TAKE}"
            )
        if rows <= size:
            return [batch]
        parts = -(-rows // size)
        ends = [-(-rows * number // parts) for number in range(parts + 1)]
        if self._follows_rule and type(batch) is tuple and all(map(_is_strided, batch)):  # as usual, without the search
            return [tuple(item[start:stop] for item in batch) for start, stop in itertools.pairwise(ends)]
        found = [self.part(batch, slice(*pair)) for pair in itertools.pairwise(ends)]
        if self.take is not None:
            for part, (start, stop) in zip(found, itertools.pairwise(ends), strict=True):
                if (taken := self.rows(part)) != stop - start:
                    raise ArgumentError(f"Batches(take=...) returned {taken} rows at slice({start}, {stop})")
        return found

    def map_rows(self, batch: Any, on_rows: Callable[[Any, int], Any]) -> Any:
        """Return the batch with `on_rows(item, dim)` in place of each tensor and list that has its rows.

        Example:
            >>> import torch
            >>> Batches().map_rows((torch.ones(2, 3), ["a", "b"], "kept"), lambda item, dim: len(item))
            (2, 2, 'kept')
        """
        if self.count is not None or self.take is not None:
            raise ArgumentError(f"rows that {self!r} counts are in no tensor or list that is known")
        rows = self.rows(batch)
        if self.samples:
            return on_rows(batch, 0)

        def walk(place: Place) -> Any:
            role, item = role_of(place), place.item
            if role is Role.ROWS or (role is Role.VALUES and place.has_values_for(rows)):
                return on_rows(item, place.check_cut())
            if role is Role.PARTS or (role is Role.VALUES and place.holds_lists):
                parts = {part.key: part for part in place.parts()}
                return rebuilt(item, lambda key, _: walk(parts[key]))
            return item

        return walk(Place.of(batch, self._said))

    def count_tokens(self, batch: Any) -> int | None:
        """Return the number of tokens of a batch, None if nothing tells; see `tokens`.

        Example:
            >>> import torch
            >>> Batches().count_tokens({"input_ids": torch.zeros(2, 3), "attention_mask": torch.ones(2, 3).tril(1)})
            5
        """
        if self.tokens is not None:
            return _whole("tokens", self.tokens(batch), batch)
        if not isinstance(batch, Mapping):
            return None
        mask, ids = batch.get("attention_mask"), batch.get("input_ids")
        if mask is not None and len(getattr(mask, "shape", ())) < 3:  # with more it says which token sees which
            return _sum(mask, lambda array: int(array.sum()))
        return None if ids is None else _sum(ids, lambda array: math.prod(array.shape))


def _whole(name: str, number: Any, batch: Any) -> int:
    if type(whole := as_number(number)) is int and whole >= 0:
        return whole
    raise ArgumentError(
        f"Batches({name}=...) returned {number!r} for a batch of type {type(batch).__name__}; it has to return a whole "
        "number"
    )


def _is_strided(item: Any) -> bool:
    return repr(getattr(item, "layout", None)) == "torch.strided" and not item.is_nested and item.dim() > 0


def _taken(item: Any, dim: int, rows: slice | torch.Tensor) -> Any:
    """Return rows of a tensor, an array or a list."""
    if isinstance(rows, slice):
        return item[(slice(None),) * dim + (rows,)] if dim else item[rows]
    if hasattr(item, "layout"):  # a tensor
        there = rows.to(item.device)
        # index_select is faster by half, but loses the memory format.
        return item.index_select(dim, there) if item.is_contiguous() else item[(slice(None),) * dim + (there,)]
    places = rows.tolist()
    if is_array(item):
        return item[(slice(None),) * dim + (places,)] if dim else item[places]
    return (tuple if isinstance(item, tuple) else list)(item[place] for place in places)


def _sum(item: Any, of_array: Callable[[Any], int]) -> int:
    """Add up what tensors hold, or lists of them."""
    if is_array(item):
        return of_array(item)
    return sum(_sum(part, of_array) for part in item) if isinstance(item, (list, tuple)) else 1
