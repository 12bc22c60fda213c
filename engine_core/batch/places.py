"""Where the rows are among the items of a batch: one role for each item, or a refusal that says what to write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

from ..errors import ArgumentError, ArgumentTypeError, did_you_mean
from ..time import as_number
from .items import are_values, is_array, is_container, is_packed, is_record, is_value, items_of

Said: TypeAlias = "Mapping[str, tuple[str, int]]"
"""What a user says of items: by path, the name of the argument, and the dimension of the rows."""

TAKE = "Batches(count=..., take=...), with a function that counts the rows of a batch and one that takes some"


def check_paths(name: str, given: Any) -> Any:
    """Return what an argument of `Batches` says of items by their paths, as a tuple or a dict."""
    kinds, example = ((Mapping,), "{'x': 1}") if name == "dim" else ((list, tuple), "('x',)")
    paths = [*map(as_number, given)] if isinstance(given, kinds) else [None]
    dims = [*map(as_number, given.values())] if isinstance(given, Mapping) else []
    are_paths = all(type(path) is str or (type(path) is int and path >= 0) for path in paths)
    if not are_paths or any(type(dim) is not int for dim in dims):
        raise ArgumentTypeError(
            f"Batches: {name}={given!r} has to be such as {name}={example}; a path is an index from 0 on, a key or a "
            "field, or several: 'a.b'"
        )
    return dict(zip(paths, dims, strict=True)) if isinstance(given, Mapping) else tuple(paths)


class Role(Enum):
    """What an item is for the rows of a batch."""

    ROWS = "has a row for each"
    VALUES = "has a value for each, if there are as many"
    SHARED = "belongs to no row"
    PARTS = "holds items of its own"


class Place(NamedTuple):
    """An item of a batch, where it is, and what the user says of it.

    Args:
        said: of all items.
        key: what it has in the container that it is in; `parent` is that.
        name: as Python writes it.
        paths: as users may write it: an item of a named tuple by its index too.
        way: the argument that names it, if one does.
        dim: the dimension of the rows, as said of it or of what it is in; None: nothing is said.
    """

    item: Any
    said: Said
    key: Any
    name: str
    paths: tuple[str, ...]
    parent: Any
    way: str | None
    dim: int | None

    @classmethod
    def of(
        cls, item: Any, said: Said, key: Any = None, name: str = "batch", paths: Any = ("",), parent: Any = None
    ) -> Place:
        """Return the place of a whole batch, or of an item of a parent."""
        way, dim = next((said[path] for path in paths if path in said), (None, 0)) if said else (None, 0)
        own = dim if way == "dim" else None if parent is None else parent.dim
        return cls(item, said, key, name, paths, parent, way, own)

    def parts(self) -> Iterator[Place]:
        """Yield what is in it."""
        item, has_fields = self.item, hasattr(self.item, "_fields")
        by_key = isinstance(item, Mapping) or (isinstance(item, (list, tuple)) and not has_fields)
        for number, (key, part) in enumerate(items_of(item)):
            keys = (key, number) if has_fields else (key,)
            paths = tuple(f"{path}.{k}" if path else str(k) for path in self.paths for k in keys)
            name = f"{self.name}[{key!r}]" if by_key else f"{self.name}.{key}"
            yield Place.of(part, self.said, key, name, paths, self)

    @property
    def path(self) -> int | str:
        """As a user would write it."""
        return int(self.paths[0]) if self.paths[0].isdecimal() else self.paths[0]

    @property
    def holds_lists(self) -> bool:
        """Does a list of values hold lists of them?"""
        return any(isinstance(part, (list, tuple)) for part in self.item)

    def has_values_for(self, rows: int) -> bool:
        """Has a list of values one for each row?"""
        if len(self.item) != rows or (self.dim is not None and self.holds_lists):
            return False
        if rows > 1 and self.holds_lists and all(len(i) == rows for i in self.item if isinstance(i, (list, tuple))):
            raise ArgumentError(
                f"{self.name} is a {type(self.item).__name__} of {rows} items, and so are the lists in it: say "
                f"Batches(per_row=({self.path!r},)) if it has one for each row, Batches(dim={{{self.path!r}: 0}}) if "
                "each of these has"
            )
        return True

    def check_cut(self) -> int:
        """Return the dimension of the rows of a tensor or list, and refuse a tensor that can't be cut there."""
        item = self.item
        if not is_array(item):
            return 0
        layout = str(getattr(item, "layout", "torch.strided")).removeprefix("torch.")
        if getattr(item, "is_nested", False) or layout != "strided":
            kind = "nested" if getattr(item, "is_nested", False) else layout.replace("_", " ")
            raise ArgumentError(f"{self.name} is a {kind} tensor, whose rows can't be cut: say {TAKE}")
        dim = self.dim or 0
        return dim + len(item.shape) if dim < 0 else dim

    def size(self) -> int:
        """Return how many rows a tensor or list has."""
        item, dim = self.item, self.dim or 0
        if not is_array(item):
            return len(item)
        if getattr(item, "is_nested", False):
            return int(item.size(dim))
        if not -len(item.shape) <= dim < len(item.shape):
            raise ArgumentError(
                f"{self.name} of shape {tuple(item.shape)} has no dimension {dim}, where Batches(dim=...) looks for "
                f"rows: say dim={{{self.path!r}: 0}}, or shared=({self.path!r},)"
            )
        return item.shape[dim]  # type: ignore[no-any-return]


def role_of(place: Place) -> Role:
    """Return what an item is for the rows."""
    item = place.item
    if place.way == "shared":
        return Role.SHARED
    if is_array(item):
        return Role.ROWS if getattr(item, "is_nested", False) or len(item.shape) else Role.SHARED
    if place.way == "per_row":
        if isinstance(item, (str, bytes)) or is_record(item) or not hasattr(item, "__getitem__"):
            raise ArgumentError(
                f"{place.name} is {item!r:.40} ({type(item).__name__}), and Batches(per_row=...) is for lists with one "
                "entry for each row"
            )
        return Role.ROWS
    if is_value(item) and not (place.parent is None and are_values(item) and place.holds_lists):
        return Role.VALUES if are_values(item) else Role.SHARED
    if not is_container(item):
        raise _unknown(place)
    if place.dim is None:
        _check_list(place)
    return Role.PARTS


def agreed_rows(batch: Any, said: Said) -> int:
    """Return the number of rows on which all that has some agrees."""
    try:
        places = list(_all(Place.of(batch, said)))
    except RecursionError:
        raise ArgumentError(f"a batch of type {type(batch).__name__} holds itself: say {TAKE}") from None
    found = [(place, place.size()) for role, place in places if role is Role.ROWS]
    dims = [path for path, (way, _) in said.items() if way == "dim"]
    if dims and not any(place.way == "dim" for _, place in places):
        names = {path for _, place in places for path in place.paths if path}
        raise ArgumentError(
            f"Batches(dim=...) names {dims[0]!r}, which is not in the batch{did_you_mean(dims[0], names)}"
        )
    if not found:
        raise _without_tensor(batch, places)
    if len(sizes := Counter(size for _, size in found)) > 1:
        raise _disagreement(found, max(sizes, key=lambda size: (sizes[size], size)))
    return found[0][1]


def _all(place: Place) -> Iterator[tuple[Role, Place]]:
    role = role_of(place)
    yield role, place
    if role is Role.PARTS:
        for part in place.parts():
            yield from _all(part)


def _check_list(place: Place) -> None:
    """Raise for a list that has items of one kind, which may be one for each row, or parts that each have all."""
    item, parent = place.item, place.parent
    if hasattr(item, "_fields") or not isinstance(item, (list, tuple)):
        return
    what = f"{place.name} is a {type(item).__name__} of {len(item)} items, the first of type {type(item[0]).__name__}"
    parts = f"Batches(dim={{{place.path!r}: 0}}) if each has all rows in its first dimension"
    if parent is None:
        if isinstance(item, list) and not any(is_array(i) or is_value(i) or isinstance(i, list) for i in item):
            raise ArgumentError(f"{what}: say Batches(samples=True) if each is a sample, {parts}")
    elif isinstance(item, list) or all(map(is_record, item)):
        similar = tuple(other.path for other in parent.parts() if other.key == place.key or _is_like(other.item, item))
        raise ArgumentError(f"{what}: say Batches(per_row={similar!r}) if it has one for each row, {parts}")


def _is_like(other: Any, item: Sequence[Any]) -> bool:
    is_list = isinstance(other, (list, tuple)) and not hasattr(other, "_fields") and not are_values(other)
    return is_list and len(other) == len(item)


def _unknown(place: Place) -> ArgumentError:
    kind = type(place.item).__name__
    if place.parent is None:
        return ArgumentError(f"the rows of a batch of type {kind} can't be counted: say {TAKE}")
    shared = "" if is_packed(place.item) else f"Batches(shared=({place.path!r},)) if it belongs to no row, else "
    return ArgumentError(f"{place.name} is of type {kind}, whose rows can't be counted: say {shared}{TAKE}")


def _without_tensor(batch: Any, places: list[tuple[Role, Place]]) -> ArgumentError:
    kind = type(batch).__name__
    lists = [place for role, place in places if role is Role.VALUES and len(place.item)]
    if lists and lists[0].parent is None:
        remedy = "say Batches(samples=True) if each of its items is a row"
    elif lists and len({len(place.item) for place in lists}) == 1:
        remedy = f"say Batches(per_row={tuple(place.path for place in lists)!r}) if these lists have an entry for each"
    else:
        remedy = f"say {TAKE}"
    return ArgumentError(f"a batch of type {kind} holds no tensor whose rows could be counted: {remedy}")


def _disagreement(found: list[tuple[Place, int]], rows: int) -> ArgumentError:
    others = [place for place, size in found if size != rows]
    (odd, size), (usual, _) = next(f for f in found if f[1] != rows), next(f for f in found if f[1] == rows)
    paths = tuple(place.path for place in others)
    remedies = [f"Batches(shared={paths!r}) if it belongs to no row"]
    shapes = [(place.path, getattr(place.item, "shape", ())) for place in others]
    if all(rows in shape for _, shape in shapes):
        dims = {path: shape.index(rows) for path, shape in shapes}
        remedies.append(f"Batches(dim={dims!r}) if its rows are in another dimension")
    if isinstance(holder := odd.parent.item, (list, tuple)) and all(map(is_array, holder)):
        if odd.parent.parent is None and isinstance(holder, list):
            remedies.append("Batches(samples=True) if each is a sample")
        elif odd.parent.parent is not None and len(holder) == rows:
            remedies.append(f"Batches(per_row=({odd.parent.path!r},)) if each of these is of one row")
    return ArgumentError(
        f"{odd.name} {_size(odd)} has {size} {'row' if size == 1 else 'rows'} and {usual.name} {_size(usual)} has "
        f"{rows}: say {', '.join(remedies)}, or count= and take= for anything else"
    )


def _size(place: Place) -> str:
    if not is_array(place.item):
        return f"of length {len(place.item)}"
    return f"of shape {tuple(place.item.shape)}" if not getattr(place.item, "is_nested", False) else "of nested shapes"
