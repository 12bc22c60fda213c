"""What a plugin declares and mentions, looked at without running it, by the conformance kit and by the doctor."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from types import CodeType
from typing import Any

from pydantic import BaseModel, ValidationError

from engine_core.errors import nearest
from engine_core.event import Event
from engine_core.messages import in_one_line
from engine_core.metadata import ORDERING, AlgorithmMetadata
from engine_core.registry import Registry

_NAMES = {name for event in Event for name in (event.value, event.canonical_name)}
_LIKE_A_NAME = re.compile("[a-z_]{4,}")  # shorter ones, such as "int", are like "init" by chance


def invalid(metadata: BaseModel) -> str | None:
    """Return what is wrong with metadata if it is validated again, strictly; pydantic can be told to skip that."""
    try:
        content = {name: getattr(metadata, name) for name in type(metadata).model_fields}
        again = type(metadata).model_validate(content, strict=True)
    except ValidationError as error:
        return in_one_line(error)
    except (AttributeError, TypeError, ValueError) as error:
        return str(error)
    return None if again == metadata else f"it reads back as {again!r}"


def misspelt_events(cls: type) -> Iterator[str]:
    """Yield what is wrong with each method of an algorithm or a callback that names nearly an event.

    Looked up in the constants of the code: an `Event.__eq__` would make all comparisons six times slower.
    """
    for name in ("match", "apply", *(event.value for event in Event)):
        method = getattr(cls, name, None)
        function = inspect.unwrap(method) if callable(method) else None
        for text in dict.fromkeys(_strings_in(getattr(function, "__code__", None))):
            if _LIKE_A_NAME.fullmatch(text) and text not in _NAMES:
                near = nearest(text, [event.value for event in Event], cutoff=0.8)
                if near is not None and _is_one_slip(text, near):  # "batch_mean" and "finite" are names of their own
                    yield f"{cls.__name__}.{name} mentions {text!r}, and no event has that name; did you mean {near!r}?"


def misspelt_references(metadata: AlgorithmMetadata) -> Iterator[str]:
    """Yield what is wrong with each name of another algorithm that is an installed one's but for case and `_-.`."""
    names = [record.name for record in Registry.scan().records if record.kind == "algorithms"]
    for relation in (*ORDERING, "requires", "conflicts"):
        for reference in getattr(metadata, relation):
            meant = next((name for name in names if _bare(name) == _bare(reference)), reference)
            if reference not in names and meant != reference:
                yield f"{relation}={reference!r} in its metadata names no algorithm; did you mean {meant!r}?"


def _bare(name: str) -> str:
    return re.sub(r"[_.\-]", "", name).lower()


def _is_one_slip(text: str, name: str) -> bool:
    """Do they differ by one character, added, left out or another one, or by two that changed places?"""
    rests = [(text[i:], name[i:]) for i in range(len(name) + 1) if text[:i] == name[:i]]
    return any(t[1:] in (n, n[1:]) or t in (n[1:], f"{n[1:2]}{n[:1]}{n[2:]}") for t, n in rests)


def _strings_in(constant: Any) -> Iterator[str]:
    if isinstance(constant, str):
        yield constant
    elif isinstance(constant, CodeType):
        yield from _strings_in(constant.co_consts)
    elif isinstance(constant, (tuple, frozenset)):
        for item in constant:
            yield from _strings_in(item)
