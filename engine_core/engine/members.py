"""What an engine is given, checked one by one; its algorithms become members with unique names."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any, Literal

from ..algorithm import Algorithm, unique_names
from ..errors import ArgumentError, ArgumentTypeError, PluginError
from ..passes import Member
from ..registry import Registry, check_plugin

_CALLED = {"algorithms": "algorithm", "callbacks": "callback", "loggers": "logger destination"}


def check_listed(
    kind: Literal["algorithms", "callbacks", "loggers"], listed: Sequence[Any], known: Container[int] = ()
) -> None:
    """Raise unless a list has instances of this kind, each once; `known`: the ids of those admitted before."""
    for index, item in enumerate(listed):
        place = f"{_CALLED[kind]} {index}"
        if isinstance(item, type):
            raise ArgumentTypeError(f"{place} is the class {item.__name__}; write {item.__name__}()")
        if any(item is other for other in listed[:index]):
            raise ArgumentError(f"{place} ({type(item).__name__}) is listed twice; make a second instance instead")
        try:
            if id(item) not in known:
                check_plugin(kind, item, place)
        except TypeError as error:
            raise ArgumentTypeError(str(error)) from error


def admit(algorithms: Sequence[Any], known: Mapping[int, Member], registry: Registry) -> list[Member]:
    """Return a member for each algorithm of an engine, each checked on its own; known ones keep their member."""
    check_listed("algorithms", algorithms, known)
    listed = {id(algorithm) for algorithm in algorithms}
    return name_members(algorithms, {key: member for key, member in known.items() if key in listed}, registry)


def name_members(algorithms: Sequence[Algorithm], known: Mapping[int, Member], registry: Registry) -> list[Member]:
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
