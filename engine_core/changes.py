"""What differs between two descriptions of a run, by key path: resume, `diff` and the ranks select and word it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple


class _Absent:
    def __repr__(self) -> str:
        return "absent"


ABSENT = _Absent()
"""Stands for a value that one of the two lacks."""


class Change(NamedTuple):
    """A value that differs.

    Args:
        path: its key, or as in `algorithms[noise].args.std` its path through mappings and lists, see `leaves`.
    """

    path: str
    was: Any
    now: Any


def changes(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[Change]:
    """Return what differs between two mappings.

    Example:
        >>> changes({"lr": 1, "seed": 3}, {"lr": 1.0, "seed": True})
        [Change(path='seed', was=3, now=True)]
    """
    found = (Change(path, was.get(path, ABSENT), now.get(path, ABSENT)) for path in dict.fromkeys([*was, *now]))
    return [change for change in found if not _same(change.was, change.now)]


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what is nested in mappings and lists, each with its path; entries with a name are known by it.

    Example:
        >>> dict(leaves({"seed": 3, "algorithms": [{"name": "noise", "args": {"std": 0.1}}], "sizes": [1]}))
        {'seed': 3, 'algorithms': ['noise'], 'algorithms[noise].args.std': 0.1, 'sizes[0]': 1}
    """
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value and all(map(_naming, value)):
        named = _by_name(value)
        yield path, list(named)
        for name, inner in named.items():
            if inner:
                yield from leaves(inner, f"{path}[{name}]")
    elif isinstance(value, list) and value:
        for index, inner in enumerate(value):
            yield from leaves(inner, f"{path}[{index}]")
    else:
        yield path, value


def _same(was: Any, now: Any) -> bool:
    """Are two JSON values equal? True is not 1, but 1 is 1.0 and NaN is NaN."""
    return isinstance(was, bool) == isinstance(now, bool) and (was == now or (was != was and now != now))  # noqa: PLR0124


def _naming(entry: Any) -> str | None:
    """Return the key that names an entry, or None."""
    found = entry if isinstance(entry, Mapping) else {}
    return next((key for key in ("name", "target") if isinstance(found.get(key), str)), None)


def _by_name(entries: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the entries without their names, by name; the second with a name is called `name-2`."""
    named: dict[str, dict[str, Any]] = {}
    for entry in entries:
        naming = _naming(entry) or ""
        name = key = str(entry[naming])
        count = 1
        while key in named:
            count += 1
            key = f"{name}-{count}"
        named[key] = {k: v for k, v in entry.items() if k != naming}
    return named
