"""The passes of one engine, and the order they give: run them, verify the result, keep how it came about."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..algorithm import Algorithm, algorithm_metadata, unique_names
from ..errors import OrderError, OrderWarning, PluginError, add_note
from ..event import Event
from ..messages import warn
from ..metadata import STAGES, PassMetadata
from ..registry import CORE, Registry
from .builtin import apply_declared_order
from .contract import AlgorithmPass, metadata_of, name_of
from .declared import declared_edges, registered_name
from .derivation import AlgorithmRecord, Derivation, PassRecord, precedes
from .toposort import Edge, stable_sort

__all__ = ["ActivePass", "PassList", "record_of", "sort_passes"]


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

    @property
    def record(self) -> PassRecord:
        """What can be written down of it."""
        version = None if self.distribution is None else Registry.scan().version_of(self.distribution)
        events = None if self.metadata.events is None else tuple(str(event) for event in self.metadata.events)
        return PassRecord(name_of(self.function), self.distribution, version, self.metadata.stage, events)

    def runs_at(self, event: Event) -> bool:
        """Does it look at this event?"""
        return self.metadata.events is None or event in self.metadata.events


class PassList:
    """The installed passes of the distributions in use, sorted, with the user's own inserted where they asked."""

    def __init__(self) -> None:
        self.distributions: list[str] = []
        self._users: list[tuple[AlgorithmPass, int]] = []
        self._warned: list[AlgorithmPass] = []
        self._told: set[str] = set()
        self.active: tuple[ActivePass, ...] = ()

    def use(self, distributions: Iterable[str]) -> None:
        """Bring in the passes of distributions whose algorithms are in use; engine-core's are always there."""
        wanted = sorted({CORE, *self.distributions, *distributions})
        if wanted != self.distributions:
            self.active = _resolve(wanted, self._users)
            self.distributions = wanted

    def insert(self, function: AlgorithmPass, index: int) -> None:
        """Insert a pass of the user's: -1 appends, any other index is an insertion point."""
        users = [*self._users, (function, index)]
        self.active = _resolve(self.distributions, users)
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
        final = [id(a) for a in steps[-1][1]]
        edges = declared_edges(algorithms, event)
        if any(precedes(id(algorithms[e.second]), id(algorithms[e.first]), final) for e in edges):
            self._complain(self._derivation(algorithms, event, steps))
        return steps[-1][1]

    def derivation(self, algorithms: Mapping[str, Algorithm], event: Event) -> Derivation:
        """Return how the order comes about, pass by pass, and warn of nothing; `broken` says what is wrong with it."""
        if not algorithms:
            return Derivation(event.value, (), ())
        return self._derivation(algorithms, event, self._run(algorithms, event))

    def explain(self, algorithms: Mapping[str, Algorithm], event: Event) -> Derivation:
        """Return how the order comes about, verified as `order` does."""
        derivation = self.derivation(algorithms, event)
        self._complain(derivation)
        return derivation

    def broken(self, derivation: Derivation) -> Iterator[tuple[str, AlgorithmPass | None]]:
        """Yield what is wrong for each declared constraint that the order breaks, and the user's pass that did it."""
        for edge in derivation.edges:
            if precedes(edge.second, edge.first, derivation.final):
                place = derivation.last_flip(edge.second, edge.first)
                breaker = None if place is None else self.active[place]
                turned = f"{breaker or 'the order given'} puts {edge.second} before {edge.first}"
                message = f"{turned} at {Event(derivation.event).name}, against what {edge.declared_by} declares"
                if breaker is not None and breaker.distribution is None:
                    yield f"{message}; your pass wins", breaker.function
                else:
                    yield f"{message}; disable that pass or fix its distribution", None

    def arrange(self, algorithms: Mapping[str, Algorithm], event: Event, edges: Sequence[Edge]) -> list[Algorithm]:
        """Return the order as the passes that move algorithms make it, neither checked nor verified.

        Args:
            edges: what the algorithms declare about each other, which is the same for each arrangement of them.
        """
        current = list(algorithms.values())
        names = {id(a): name for name, a in algorithms.items()}
        for active in self.active:
            if active.runs_at(event) and active.metadata.stage != "check":
                if active.function is apply_declared_order and all(id(a) in names for a in current):
                    current = [algorithms[name] for name in stable_sort([names[id(a)] for a in current], edges)]
                else:
                    current = list(active.function(list(current), event))
        return current

    def tell(self, message: str, category: type[Warning]) -> None:
        """Warn once in the life of the engine."""
        if message not in self._told:
            self._told.add(message)
            warn(message, category)

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

    def _derivation(
        self,
        algorithms: Mapping[str, Algorithm],
        event: Event,
        steps: Sequence[tuple[ActivePass | None, list[Algorithm]]],
    ) -> Derivation:
        known = {id(a): (name, a) for name, a in algorithms.items()}
        added = list({id(a): a for _, order in steps for a in order if id(a) not in known}.values())
        for name, algorithm in zip(unique_names(added, algorithms), added, strict=True):
            known[id(algorithm)] = name, algorithm
        places = [place for place, active in enumerate(self.active) if active.runs_at(event)]
        orders = [tuple(known[id(a)][0] for a in order) for _, order in steps]
        return Derivation(
            event=event.value,
            given=orders[0],
            steps=tuple(zip(places, orders[1:], strict=True)),
            edges=tuple(declared_edges(algorithms, event)),
            passes=tuple(active.record for active in self.active),
            members={name: record_of(algorithm, name) for name, algorithm in known.values()},
        )

    def _complain(self, derivation: Derivation) -> None:
        for message, users in self.broken(derivation):
            if users is None:
                raise OrderError(message)
            if not any(users is known for known in self._warned):
                self._warned.append(users)
                warn(message, OrderWarning)


def record_of(algorithm: Algorithm, name: str) -> AlgorithmRecord:
    """Return what can be written down of an algorithm with this unique name."""
    registry = Registry.scan()
    owner = registry.distribution_of(algorithm)
    version = None if owner is None else registry.version_of(owner)
    events = algorithm_metadata(algorithm).events
    listed = None if events is None else tuple(str(event) for event in events)
    return AlgorithmRecord(name, registered_name(algorithm), owner, version, listed)


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
