"""What a pass is, how to mark one, and how to give passes to an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar, cast, overload

from ..algorithm import Algorithm
from ..errors import ArgumentError, ArgumentTypeError
from ..event import Event
from ..metadata import PassMetadata
from ..time import as_number

AlgorithmPass: TypeAlias = Callable[[Sequence[Algorithm], Event], Sequence[Algorithm]]
"""Reorders or checks the matched algorithms of one event."""

PassArgument: TypeAlias = (
    "AlgorithmPass | tuple[AlgorithmPass, int] | Sequence[AlgorithmPass | tuple[AlgorithmPass, int]]"
)
"""A pass, a `(pass, index)` pair, or a sequence of these."""

T = TypeVar("T")
P = TypeVar("P", bound=AlgorithmPass)


@overload
def algorithm_pass(metadata: PassMetadata, /) -> Callable[[P], P]: ...
@overload
def algorithm_pass(**fields: Any) -> Callable[[P], P]: ...
def algorithm_pass(metadata: PassMetadata | None = None, /, **fields: Any) -> Callable[[P], P]:
    """Mark a function as a pass, with a `PassMetadata` or with its fields.

    Example:
        >>> @algorithm_pass(stage="placement", events=("after_dataloader",))
        ... def keep(algorithms, event):
        ...     return algorithms
        >>> keep.metadata.name
        'keep'
    """
    if metadata is not None and not isinstance(metadata, PassMetadata):
        raise ArgumentTypeError(
            f"@algorithm_pass takes a PassMetadata or its fields, not {metadata!r}: "
            "write @algorithm_pass(stage='placement')"
        )
    if metadata is not None and fields:
        raise ArgumentError(f"@algorithm_pass takes a PassMetadata or its fields, not both: {', '.join(fields)}")
    given = PassMetadata(**fields) if metadata is None else metadata

    def mark(function: P) -> P:
        marked: Any = function
        marked.metadata = given.model_copy(update={"name": given.name or function.__name__})
        return function

    return mark


def metadata_of(function: AlgorithmPass) -> PassMetadata:
    """Return what a pass declares; an unmarked one runs at every event and counts as impure."""
    metadata = getattr(function, "metadata", None)
    if isinstance(metadata, PassMetadata):
        return metadata
    return PassMetadata(name=getattr(function, "__name__", type(function).__name__).strip("<>"), pure=False)


def sort_to_front(list_to_sort: Sequence[T], cls: type | tuple[type, ...]) -> list[T]:
    """Return the items with the instances of `cls` first, otherwise in the order given.

    Example:
        >>> sort_to_front([1, 'b', 3], str)
        ['b', 1, 3]
    """
    return sorted(list_to_sort, key=lambda item: not isinstance(item, cls))


def sort_to_back(list_to_sort: Sequence[T], cls: type | tuple[type, ...]) -> list[T]:
    """Return the items with the instances of `cls` last, otherwise in the order given.

    Example:
        >>> sort_to_back([1, 'b', 3], str)
        [1, 3, 'b']
    """
    return sorted(list_to_sort, key=lambda item: isinstance(item, cls))


def name_of(function: AlgorithmPass) -> str:
    """Return the name of a pass."""
    return metadata_of(function).name or "pass"


def check_pass(function: object, where: str) -> AlgorithmPass:
    """Return `function` if it can be a pass."""
    if isinstance(function, type) or not callable(function):
        raise ArgumentError(f"{where}: a pass is a function (algorithms, event) -> algorithms, not {function!r}")
    return cast("AlgorithmPass", function)


def parse_passes(given: PassArgument | None) -> list[tuple[AlgorithmPass, int]]:
    """Return the `(pass, index)` pairs that `Engine(algorithm_passes=...)` was given, or raise ArgumentError."""
    if given is None:
        return []
    if _is_pair(given):
        return [given]  # type: ignore[list-item]
    if isinstance(given, (list, tuple)):
        return [item if _is_pair(item) else (check_pass(item, "algorithm_passes"), -1) for item in given]
    return [(check_pass(given, "algorithm_passes"), -1)]


def check_index(index: object) -> int:
    """Return `index` if it is an insertion point."""
    index = as_number(index)
    if isinstance(index, bool) or not isinstance(index, int):
        raise ArgumentError(f"the index of a pass is an int (-1 appends), not {index!r}")
    return index


def _is_pair(given: object) -> bool:
    if not (isinstance(given, tuple) and len(given) == 2 and callable(given[0]) and not callable(given[1])):
        return False
    check_pass(given[0], "algorithm_passes")
    check_index(given[1])
    return True
