"""The algorithms of an engine as its members: each is checked on its own and gets a unique name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..algorithm import Algorithm, unique_names
from ..errors import ArgumentError, ArgumentTypeError, PluginError
from ..passes import Member
from ..registry import Registry, check_algorithm, lacking


def take_in(algorithms: Sequence[Any], known: Mapping[int, Member], registry: Registry) -> list[Member]:
    """Return a member for each algorithm of an engine, each checked on its own; known ones keep their member."""
    seen: set[int] = set()
    for place, algorithm in enumerate(algorithms):
        if isinstance(algorithm, type):
            raise ArgumentTypeError(
                f"algorithm {place} is the class {algorithm.__name__}; write {algorithm.__name__}()"
            )
        # Only what is not an algorithm is shown: a `repr` takes longer than all checks, and is the author's code.
        shown = f" ({algorithm!r} of type {type(algorithm).__name__})" if lacking(algorithm, "match", "apply") else ""
        try:
            check_algorithm(algorithm, f"algorithm {place}{shown}")
        except TypeError as error:
            raise ArgumentTypeError(str(error)) from error
        if id(algorithm) in seen:
            raise ArgumentError(f"algorithm {place} ({algorithm!r}) is listed twice; make a second instance instead")
        seen.add(id(algorithm))
    return enlist(algorithms, {key: member for key, member in known.items() if key in seen}, registry)


def enlist(algorithms: Sequence[Algorithm], known: Mapping[int, Member], registry: Registry) -> list[Member]:
    """Return a member for each algorithm: the known one by id, or a new one with a name not yet taken."""
    newcomers = [a for a in algorithms if id(a) not in known]
    names = unique_names(newcomers, [member.name for member in known.values()])
    new = {id(a): Member.of(a, name, registry) for a, name in zip(newcomers, names, strict=True)}
    for member in new.values():
        record = member.record
        if record is not None and record.status == "disabled":
            raise PluginError(
                f"algorithm {member.name} is {record.name!r} of {record.origin}, which is disabled: {record.reason}; "
                "leave it out, or enable it"
            )
    return [known.get(id(a)) or new[id(a)] for a in algorithms]


def overrides(algorithm: Algorithm, name: str) -> bool:
    """Does the class define `name` differently from the base class?"""
    if name in getattr(algorithm, "__dict__", {}):
        return True
    return getattr(type(algorithm), name, None) not in (None, getattr(Algorithm, name))
