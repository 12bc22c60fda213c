"""The passes of one engine, and the order they give: run them, verify the result, say why it is so."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from .algorithm import Algorithm
from .errors import ArgumentError, OrderError, OrderWarning, PluginError, add_note
from .event import Event
from .metadata import PassMetadata
from .ordering import Edge
from .passes import (
    AlgorithmPass,
    apply_declared_order,
    check_pass,
    declared_edges,
    metadata_of,
    name_of,
    registered_name,
    set_filo_order,
    sort_passes,
)
from .registry import CORE, Registry

__all__ = ["Explained", "PassArgument", "PassList", "parse_passes"]

PassArgument: TypeAlias = (
    "AlgorithmPass | tuple[AlgorithmPass, int] | Sequence[AlgorithmPass | tuple[AlgorithmPass, int]]"
)
"""A pass, a `(pass, index)` pair, or a sequence of these."""


class Explained(NamedTuple):
    """One algorithm in the order of an event: its unique name, its registered name, and why it stands there."""

    algorithm: str
    name: str
    why: str


@dataclass(frozen=True)
class ActivePass:
    """A pass of an engine and where it comes from; `distribution` is None for the user's own."""

    function: AlgorithmPass
    distribution: str | None
    metadata: PassMetadata = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "metadata", metadata_of(self.function))

    def __str__(self) -> str:
        return f"pass {self.metadata.name!r} of {self.distribution or 'the user'}"

    def runs_at(self, event: Event) -> bool:
        """Does it look at this event?"""
        return self.metadata.events is None or event in self.metadata.events


class PassList:
    """The installed passes of the distributions in use, sorted, with the user's own inserted where they asked."""

    def __init__(self) -> None:
        self._distributions: list[str] = []
        self._users: list[tuple[AlgorithmPass, int]] = []
        self._warned: list[AlgorithmPass] = []
        self.active: tuple[ActivePass, ...] = ()

    def use(self, distributions: Iterable[str]) -> None:
        """Bring in the passes of distributions whose algorithms are in use; engine-core's are always there."""
        wanted = sorted({CORE, *self._distributions, *distributions})
        if wanted != self._distributions:
            self.active = _resolve(wanted, self._users)
            self._distributions = wanted

    def insert(self, function: AlgorithmPass, index: int) -> None:
        """Insert a pass of the user's: -1 appends, any other index is an insertion point."""
        users = [*self._users, (function, index)]
        self.active = _resolve(self._distributions, users)
        self._users = users

    def is_pure(self, event: Event) -> bool:
        """May the order for this event be remembered?"""
        return all(p.metadata.pure for p in self.active if p.runs_at(event))

    def order(self, algorithms: Mapping[str, Algorithm], event: Event) -> list[Algorithm]:
        """Return the matched algorithms, given by unique name, in the order in which they run.

        Raises:
            OrderError: if a pass of a distribution returns nonsense or breaks a declared constraint.
        """
        steps = self._run(algorithms, event)
        final = steps[-1][1]
        self._verify(algorithms, event, steps)
        return final

    def explain(self, algorithms: Mapping[str, Algorithm], event: Event) -> list[Explained]:
        """Return the final order with the reason for each neighbour pair."""
        steps = self._run(algorithms, event)
        self._verify(algorithms, event, steps)
        edges = declared_edges(algorithms, event)
        names = {id(a): name for name, a in algorithms.items()}
        final = [names.get(id(a), type(a).__name__) for a in steps[-1][1]]
        explained = []
        for place, (name, algorithm) in enumerate(zip(final, steps[-1][1], strict=True)):
            if place:
                why = f"after {final[place - 1]}: {_reason(final[place - 1], name, algorithms, steps, edges)}"
            elif len(final) > 1:
                why = f"before {final[1]}: {_reason(name, final[1], algorithms, steps, edges)}"
            else:
                why = "the only one"
            explained.append(Explained(name, registered_name(algorithm), why))
        return explained

    def _run(
        self, algorithms: Mapping[str, Algorithm], event: Event
    ) -> list[tuple[ActivePass | None, list[Algorithm]]]:
        """Return the list as it was given and as each pass left it."""
        current = list(algorithms.values())
        steps: list[tuple[ActivePass | None, list[Algorithm]]] = [(None, current)]
        for active in self.active:
            if active.runs_at(event):
                current = _call(active, current, event)
                steps.append((active, current))
        return steps

    def _verify(
        self,
        algorithms: Mapping[str, Algorithm],
        event: Event,
        steps: Sequence[tuple[ActivePass | None, list[Algorithm]]],
    ) -> None:
        for edge in declared_edges(algorithms, event):
            first, second = algorithms[edge.first], algorithms[edge.second]
            if _precedes(first, second, steps[-1][1]) is not False:
                continue
            breaker = _last_flip(second, first, steps)
            message = (
                f"{breaker or 'the order given'} puts {edge.second} before {edge.first} at {event.name}, "
                f"against what {edge.declared_by} declares"
            )
            if breaker is None or breaker.distribution is not None:
                raise OrderError(f"{message}; disable that pass or fix its distribution")
            if not any(breaker.function is known for known in self._warned):
                self._warned.append(breaker.function)
                warnings.warn(f"{message}; your pass wins", OrderWarning, stacklevel=2)


def _resolve(distributions: Sequence[str], users: Sequence[tuple[AlgorithmPass, int]]) -> tuple[ActivePass, ...]:
    """Return the passes of distributions, sorted, with the user's own inserted one by one."""
    registry = Registry.scan()
    source: dict[str, tuple[AlgorithmPass, str]] = {}
    for distribution in sorted(distributions, key=lambda name: name != CORE):
        for record in registry.passes_of(distribution):
            function = registry.load("passes", record.qualified_name)
            name = name_of(function)
            if name in source:
                raise PluginError(
                    f"{source[name][1]} and {distribution} both bring a pass {name!r}; "
                    f"disable one with ENGINE_CORE_DISABLE_PLUGINS={record.qualified_name}"
                )
            source[name] = (function, distribution)
    if apply_declared_order.__name__ not in source:
        raise PluginError("engine-core's own passes are missing: it is on the path but not installed; pip install it")
    installed = sort_passes(function for function, _ in source.values())
    active = [ActivePass(function, source[name_of(function)][1]) for function in installed]
    for function, index in users:
        active.insert(len(active) if index == -1 else index, ActivePass(function, None))
    return tuple(active)


def parse_passes(given: PassArgument | None) -> list[tuple[AlgorithmPass, int]]:
    """Return the `(pass, index)` pairs that `Engine(algorithm_passes=...)` was given.

    Raises:
        ArgumentError: if it is anything else than a pass, a `(pass, index)` pair, or a sequence of these.
    """
    if given is None:
        return []
    if _is_pair(given):
        return [given]  # type: ignore[list-item]
    if isinstance(given, (list, tuple)):
        return [item if _is_pair(item) else (check_pass(item, "algorithm_passes"), -1) for item in given]
    return [(check_pass(given, "algorithm_passes"), -1)]


def check_index(index: object) -> int:
    """Return `index` if it is an insertion point."""
    if isinstance(index, bool) or not isinstance(index, int):
        raise ArgumentError(f"the index of a pass is an int (-1 appends), not {index!r}")
    return index


def _is_pair(given: object) -> bool:
    if not (isinstance(given, tuple) and len(given) == 2 and callable(given[0]) and not callable(given[1])):
        return False
    check_pass(given[0], "algorithm_passes")
    check_index(given[1])
    return True


def _call(active: ActivePass, before: list[Algorithm], event: Event) -> list[Algorithm]:
    """Run a pass on a copy of the list and return what it made of it."""
    try:
        result: object = active.function(list(before), event)
    except Exception as error:
        add_note(error, f"raised by {active} at {event.name}")
        raise
    if not isinstance(result, Iterable) or isinstance(result, str):
        raise OrderError(f"{active} returned {result!r} at {event.name}; a pass returns the list of algorithms")
    after = list(result)
    _check_members(active, before, after, event)
    return after


def _check_members(active: ActivePass, before: list[Algorithm], after: list[Algorithm], event: Event) -> None:
    had, has = ({id(a): type(a).__name__ for a in items} for items in (before, after))
    lost = [had[i] for i in had.keys() - has.keys()]
    added = [has[i] for i in has.keys() - had.keys()]
    if len(has) < len(after):
        twice = next(type(a).__name__ for place, a in enumerate(after) if any(a is other for other in after[:place]))
        raise OrderError(f"{active} returned {twice} twice at {event.name}")
    for item in after:
        if isinstance(item, type) or not all(callable(getattr(item, name, None)) for name in ("match", "apply")):
            raise OrderError(f"{active} added {item!r} at {event.name}, which is no instance with match and apply")
    if (lost or added) and active.distribution is not None and not active.metadata.changes_members:
        what = " and ".join(f"{verb} {', '.join(sorted(n))}" for verb, n in (("lost", lost), ("added", added)) if n)
        raise OrderError(f"{active} {what} at {event.name} without declaring changes_members=True")


def _precedes(first: Algorithm, second: Algorithm, order: Sequence[Algorithm]) -> bool | None:
    """Does `first` come before `second`? None if one of them is absent."""
    place = {id(a): index for index, a in enumerate(order)}
    if id(first) not in place or id(second) not in place:
        return None
    return place[id(first)] < place[id(second)]


def _last_flip(
    first: Algorithm, second: Algorithm, steps: Sequence[tuple[ActivePass | None, list[Algorithm]]]
) -> ActivePass | None:
    """Return the last pass that turned the pair round so that `first` came before `second`; None: the list did."""
    for (_, before), (active, after) in reversed(list(itertools.pairwise(steps))):
        if _precedes(first, second, after) and _precedes(first, second, before) is not True:
            return active
    return None


def _reason(
    first: str,
    second: str,
    algorithms: Mapping[str, Algorithm],
    steps: Sequence[tuple[ActivePass | None, list[Algorithm]]],
    edges: Sequence[Edge],
) -> str:
    declared = next((edge for edge in edges if (edge.first, edge.second) == (first, second)), None)
    if declared is not None:
        return f"declared by {declared.declared_by}"
    if first not in algorithms or second not in algorithms:
        return "added by a pass"
    active = _last_flip(algorithms[first], algorithms[second], steps)
    if active is None:
        return "list position"
    if active.function is set_filo_order:
        return "FILO, the list is reversed on AFTER events"
    if active.function is apply_declared_order:
        return "declared order of others between them"
    return str(active)
