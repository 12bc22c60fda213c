"""What a pass is, how to mark one, how to give passes to an engine, and the core's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar, cast, overload

from ..algorithm import Algorithm, algorithm_metadata
from ..errors import ArgumentError, ArgumentTypeError
from ..event import Event
from ..messages import join_words, warn
from ..metadata import PassMetadata
from ..time import as_number
from .member import declared_edges, members_of, stable_sort

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


# Ours is not validated: building a pydantic model at import would call pydantic's plugins.
@algorithm_pass(
    PassMetadata.model_construct(
        stage="direction", description="reverse the list on AFTER events, so that what was done is undone"
    )
)
def set_filo_order(algorithms: Sequence[Algorithm], event: Event) -> Sequence[Algorithm]:
    """Reverse the list on the AFTER half of a before/after pair: first in, last out."""
    return list(reversed(algorithms)) if event.is_undo else algorithms


@algorithm_pass(
    PassMetadata.model_construct(
        stage="placement", description="put algorithms where their metadata declares before, after, around and within"
    )
)
def apply_declared_order(algorithms: Sequence[Algorithm], event: Event) -> Sequence[Algorithm]:
    """Sort by `before`, `after`, `around` and `within` of the metadata, and otherwise keep the order."""
    members = members_of(algorithms)
    named = {member.name: member.algorithm for member in members}
    return [named[name] for name in stable_sort(list(named), declared_edges(members, event))]


@algorithm_pass(
    PassMetadata.model_construct(stage="check", description="warn where several algorithms interpolate the loss")
)
def warn_if_multiple_loss_interpolation(algorithms: Sequence[Algorithm], event: Event) -> Sequence[Algorithm]:
    """Warn if more than one algorithm with the tag `@loss_interpolation` runs at AFTER_LOSS, when there is a loss."""
    if event is not Event.AFTER_LOSS:
        return algorithms
    mixing = [type(a).__name__ for a in algorithms if "loss_interpolation" in algorithm_metadata(a).tags]
    if len(mixing) > 1:
        warn(
            f"{join_words(mixing)} all interpolate the loss: each adds the loss for its own second targets, "
            "and none adds it for another's; let all but one interpolate targets instead",
            UserWarning,
        )
    return algorithms


def explicit_order(table: Mapping[Event | str, Sequence[str]]) -> AlgorithmPass:
    """Make a pass from a table of events and names, registered or of classes; other algorithms keep their places.

    The named algorithms are rearranged within the places they had. An engine warns about a name that none of its
    algorithms has.

    Example:
        >>> explicit_order({"after_dataloader": ["freeze_layers", "Noise"]}).__name__
        'explicit_order'
    """
    wanted = {Event(event): [names] if isinstance(names, str) else list(names) for event, names in table.items()}

    @algorithm_pass(name="explicit_order", stage="placement", events=tuple(wanted))
    def explicit_order(algorithms: Sequence[Algorithm], event: Event) -> Sequence[Algorithm]:
        members = members_of(algorithms)
        places = enumerate(wanted[event])
        rank = {id(m.algorithm): place for place, name in places for m in members if m.is_called(name)}
        named = iter(sorted((a for a in algorithms if id(a) in rank), key=lambda a: rank[id(a)]))
        return [next(named) if id(a) in rank else a for a in algorithms]

    tabled: Any = explicit_order
    tabled.table = wanted
    return explicit_order


def table_of(function: AlgorithmPass) -> Mapping[Event, Sequence[str]]:
    """Return the table that `explicit_order` made a pass from; empty for any other pass."""
    table: Mapping[Event, Sequence[str]] = getattr(function, "table", {})
    return table if metadata_of(function).name == explicit_order.__name__ else {}
