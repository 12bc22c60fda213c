"""Passes: functions that put the matched algorithms of one event in order. The core's own, and how to mark one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar, cast, overload

from ..algorithm import Algorithm, algorithm_metadata, unique_names
from ..errors import ArgumentError, ArgumentTypeError, OrderError
from ..event import Event
from ..messages import warn
from ..metadata import ORDERING, STAGES, AlgorithmMetadata, PassMetadata
from ..registry import Registry
from .toposort import Edge, stable_sort

__all__ = [
    "AlgorithmPass",
    "algorithm_pass",
    "apply_declared_order",
    "declared_edges",
    "explicit_order",
    "metadata_of",
    "set_filo_order",
    "sort_passes",
    "sort_to_back",
    "sort_to_front",
    "warn_if_multiple_loss_interpolation",
]

AlgorithmPass: TypeAlias = Callable[[Sequence[Algorithm], Event], Sequence[Algorithm]]
"""Reorders or checks the matched algorithms of one event."""

T = TypeVar("T")
P = TypeVar("P", bound=AlgorithmPass)


class _Marked(Protocol):
    metadata: PassMetadata


class _Tabled(Protocol):
    table: Mapping[Event, Sequence[str]]


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
        name = given.name or function.__name__
        cast("_Marked", function).metadata = given.model_copy(update={"name": name})
        return function

    return mark


def metadata_of(function: AlgorithmPass) -> PassMetadata:
    """Return what a pass declares; one that is not marked runs at every event and is not taken for pure."""
    metadata = getattr(function, "metadata", None)
    if isinstance(metadata, PassMetadata):
        return metadata
    return PassMetadata(name=getattr(function, "__name__", type(function).__name__).strip("<>"), pure=False)


def sort_to_front(items: Sequence[T], kind: type | tuple[type, ...]) -> list[T]:
    """Return the items with the instances of `kind` first, otherwise in the order given.

    Example:
        >>> sort_to_front([1, 'b', 3], str)
        ['b', 1, 3]
    """
    return sorted(items, key=lambda item: not isinstance(item, kind))


def sort_to_back(items: Sequence[T], kind: type | tuple[type, ...]) -> list[T]:
    """Return the items with the instances of `kind` last, otherwise in the order given.

    Example:
        >>> sort_to_back([1, 'b', 3], str)
        [1, 3, 'b']
    """
    return sorted(items, key=lambda item: isinstance(item, kind))


# Ours is not validated: an import that builds a pydantic model would call the plugins of pydantic.
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
    named = dict(zip(unique_names(algorithms), algorithms, strict=True))
    return [named[name] for name in stable_sort(list(named), declared_edges(named, event))]


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
            f"{' and '.join(mixing)} all interpolate the loss: each adds that for its own second targets, and none "
            "that for the second targets of those; let all but one interpolate targets instead",
            UserWarning,
        )
    return algorithms


def explicit_order(table: Mapping[Event | str, Sequence[str]]) -> AlgorithmPass:
    """Make a pass from a table of events and names (registered or class names); who is not named keeps its place.

    The named algorithms share the places that they had, in the order of the table. An engine warns of a name that none
    of its algorithms has.

    Example:
        >>> explicit_order({"after_dataloader": ["freeze_layers", "Noise"]}).__name__
        'explicit_order'
    """
    wanted = {Event(event): [names] if isinstance(names, str) else list(names) for event, names in table.items()}

    @algorithm_pass(name="explicit_order", stage="placement", events=tuple(wanted))
    def explicit_order(algorithms: Sequence[Algorithm], event: Event) -> Sequence[Algorithm]:
        rank: dict[int, int] = {}
        for place, name in enumerate(wanted[event]):
            rank.update({id(a): place for a in algorithms if name in (registered_name(a), type(a).__name__)})
        named = iter(sorted((a for a in algorithms if id(a) in rank), key=lambda a: rank[id(a)]))
        return [next(named) if id(a) in rank else a for a in algorithms]

    cast("_Tabled", explicit_order).table = wanted
    return explicit_order


def table_of(function: AlgorithmPass) -> Mapping[Event, Sequence[str]]:
    """Return the table that `explicit_order` made a pass from, for any other pass an empty one."""
    table: Mapping[Event, Sequence[str]] = getattr(function, "table", {})
    return table if metadata_of(function).name == explicit_order.__name__ else {}


def registered_name(algorithm: Algorithm) -> str:
    """Return the name that `before` and `after` refer to."""
    return Registry.scan().name_of(algorithm)


def declared_edges(algorithms: Mapping[str, Algorithm], event: Event) -> list[Edge]:
    """Return what the algorithms, by unique name, declare about each other at an event that both list."""
    present = {name: a for name, a in algorithms.items() if _lists(algorithm_metadata(a), event)}
    edges = []
    for name, algorithm in present.items():
        own = algorithm_metadata(algorithm)
        earlier = {"before", "within" if event.is_after_event else "around"}
        for relation in ORDERING:
            for reference in getattr(own, relation):
                for other in referred(reference, name, present):
                    first, second = (name, other) if relation in earlier else (other, name)
                    edges.append(Edge(first, second, f"{name} ({_origin(algorithm)}{relation}={reference!r})"))
    return edges


def _origin(algorithm: Algorithm) -> str:
    """Return who ships an algorithm, with a comma after it; nothing if it is the user's own."""
    registry = Registry.scan()
    owner = registry.distribution_of(algorithm)
    return "" if owner is None else f"{owner} {registry.version_of(owner)}, "


def referred(reference: str, name: str, algorithms: Mapping[str, Algorithm]) -> list[str]:
    """Return the unique names of the others that a registered name or `@tag` in the metadata of `name` means."""
    others = {n: a for n, a in algorithms.items() if n != name}
    if reference.startswith("@"):
        return [n for n, a in others.items() if reference[1:] in algorithm_metadata(a).tags]
    return [n for n, a in others.items() if registered_name(a) == reference]


def events_of(algorithm: Algorithm) -> tuple[Event | str, ...] | None:
    """Return the events that an algorithm lists, None for all."""
    return algorithm_metadata(algorithm).events


def _lists(metadata: AlgorithmMetadata, event: Event) -> bool:
    return metadata.events is None or event in metadata.events


def sort_passes(passes: Iterable[AlgorithmPass]) -> list[AlgorithmPass]:
    """Sort passes by stage, then by their before and after, ties by name; the declared order opens its stage.

    Raises:
        OrderError: if their before and after form a cycle, or contradict the stages.
    """
    by_name = {name_of(p): p for p in passes}
    ordered: list[AlgorithmPass] = []
    for stage in STAGES:
        names = [name for name, p in by_name.items() if metadata_of(p).stage == stage]
        edges = [edge for name in names for edge in _pass_edges(name, metadata_of(by_name[name]))]
        opening = _with_forerunners(apply_declared_order.__name__, edges)
        names.sort(key=lambda name: (name not in opening, name))
        ordered += [by_name[name] for name in stable_sort(names, edges)]
    _refuse_against_stages([name_of(p) for p in ordered], by_name)
    return ordered


def name_of(function: AlgorithmPass) -> str:
    """Return the name of a pass."""
    return metadata_of(function).name or "pass"


def _pass_edges(name: str, metadata: PassMetadata) -> list[Edge]:
    later = [Edge(name, other, f"pass {name} (before={other!r})") for other in metadata.before]
    return later + [Edge(other, name, f"pass {name} (after={other!r})") for other in metadata.after]


def _with_forerunners(name: str, edges: Sequence[Edge]) -> set[str]:
    found = {name}
    while more := {edge.first for edge in edges if edge.second in found} - found:
        found |= more
    return found


def _refuse_against_stages(ordered: list[str], by_name: Mapping[str, AlgorithmPass]) -> None:
    place = {name: index for index, name in enumerate(ordered)}
    for name in ordered:
        for edge in _pass_edges(name, metadata_of(by_name[name])):
            if edge.first in place and edge.second in place and place[edge.first] > place[edge.second]:
                stages = {n: metadata_of(by_name[n]).stage for n in (edge.first, edge.second)}
                raise OrderError(
                    f"pass {edge.first!r} (stage {stages[edge.first]}) can't run before {edge.second!r} "
                    f"(stage {stages[edge.second]}), as {edge.declared_by} asks: stages come first"
                )


def check_pass(function: object, where: str) -> AlgorithmPass:
    """Return `function` if it can be a pass."""
    if isinstance(function, type) or not callable(function):
        raise ArgumentError(f"{where}: a pass is a function (algorithms, event) -> algorithms, not {function!r}")
    return cast("AlgorithmPass", function)
