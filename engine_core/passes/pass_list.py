"""The passes of one engine and the order they produce: run them, verify the result, record how it came about."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ..algorithm import Algorithm, unique_names
from ..errors import OrderError, OrderWarning, PluginError, add_note, did_you_mean
from ..event import Event
from ..messages import warn
from ..metadata import STAGES, PassMetadata
from ..registry import CORE, Origin, Registry
from .contract import AlgorithmPass, apply_declared_order, metadata_of, name_of, table_of
from .derivation import AlgorithmRecord, Derivation, PassRecord, precedes
from .member import Edge, Member, declared_edges, stable_sort


@dataclass(frozen=True)
class ActivePass:
    """A pass of an engine and its distribution; None: the user."""

    function: AlgorithmPass
    origin: Origin | None

    @property
    def metadata(self) -> PassMetadata:
        """What the pass declares."""
        return metadata_of(self.function)

    def __str__(self) -> str:
        return str(self.record)

    @property
    def record(self) -> PassRecord:
        """What can be saved of it."""
        distribution, version = self.origin or (None, None)
        events = None if self.metadata.events is None else tuple(str(event) for event in self.metadata.events)
        return PassRecord(name_of(self.function), distribution, version, self.metadata.stage, events)

    def runs_at(self, event: Event) -> bool:
        """Does it look at this event?"""
        return self.metadata.events is None or event in self.metadata.events


class PassList:
    """The installed passes of the distributions in use, sorted, with the user's own inserted at their indices."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.distributions: list[str] = []
        self._users: list[tuple[AlgorithmPass, int]] = []
        self._warned: list[AlgorithmPass] = []
        self._unknown: set[tuple[Event, str]] = set()
        self.active: tuple[ActivePass, ...] = ()
        self.use((), registry)

    def use(self, distributions: Iterable[str], registry: Registry) -> None:
        """Add the passes of distributions whose algorithms are in use; engine-core's are always there."""
        self.registry = registry
        wanted = sorted({CORE, *self.distributions, *distributions})
        if wanted != self.distributions:
            self.active = _resolve(wanted, self._users, registry)
            self.distributions = wanted

    def insert(self, function: AlgorithmPass, index: int) -> None:
        """Insert a user's pass: -1 appends, any other index is an insertion point."""
        users = [*self._users, (function, index)]
        self.active = _resolve(self.distributions, users, self.registry)
        self._users = users

    def is_pure(self, event: Event) -> bool:
        """May the order for this event be cached?"""
        return all(p.metadata.pure for p in self.active if p.runs_at(event))

    def order(self, members: Sequence[Member], event: Event) -> list[Algorithm]:
        """Return the matched algorithms in running order, with those that passes added."""
        edges = declared_edges(members, event)
        steps = self._run(members, event, edges)
        ids = {member.name: id(member.algorithm) for member in members}
        final = [id(a) for a in steps[-1]]
        if any(precedes(ids[edge.second], ids[edge.first], final) for edge in edges):
            self._complain(self._derivation(members, event, edges, steps))
        return steps[-1]

    def derivation(self, members: Sequence[Member], event: Event) -> Derivation:
        """Return how the order comes about, pass by pass, without warnings; `broken` says what is wrong with it."""
        if not members:
            return Derivation(event.value, (), ())
        edges = declared_edges(members, event)
        return self._derivation(members, event, edges, self._run(members, event, edges))

    def explain(self, members: Sequence[Member], event: Event) -> Derivation:
        """Return how the order comes about, verified as `order` does."""
        derivation = self.derivation(members, event)
        self._complain(derivation)
        return derivation

    def broken(self, derivation: Derivation) -> Iterator[tuple[str, AlgorithmPass | None]]:
        """Yield a message for each declared constraint that the order breaks, and the user's pass that broke it."""
        for edge in derivation.edges:
            if precedes(edge.second, edge.first, derivation.final):
                place = derivation.last_flip(edge.second, edge.first)
                breaker = None if place is None else self.active[place]
                turned = f"{breaker or 'the order given'} puts {edge.second} before {edge.first}"
                message = f"{turned} at {Event(derivation.event).name}, but {edge.declared_by} declares the opposite"
                if breaker is not None and breaker.origin is None:
                    yield f"{message}; your pass wins", breaker.function
                else:
                    yield f"{message}; disable that pass or fix its distribution", None

    def warn_of_unknown_names(self, members: Sequence[Member]) -> None:
        """Warn of names in tables of `explicit_order` that match no algorithm, each once; without algorithms, of none.

        It is the user who wrote them, and without effect they would go unnoticed.
        """
        registered = [member.registered for member in members]
        tables = [(event, names) for active in self.active for event, names in table_of(active.function).items()]
        for event, name in [(event, name) for event, names in tables for name in names if members]:
            if (event, name) not in self._unknown and not any(member.is_called(name) for member in members):
                self._unknown.add((event, name))
                message = f"explicit_order names {name!r} at {event.name}, but no algorithm here has that name"
                warn(f"{message}{did_you_mean(name, registered)}", OrderWarning)

    def _run(self, members: Sequence[Member], event: Event, edges: Sequence[Edge]) -> list[list[Algorithm]]:
        """Return the given list, and the list after each pass that runs at the event."""
        known = {id(member.algorithm): member for member in members}
        steps = [[member.algorithm for member in members]]
        for active in self.active:
            if not active.runs_at(event):
                continue
            function = active.function
            if function is apply_declared_order and all(id(a) in known for a in steps[-1]):
                function = partial(_sort, known, edges)  # as a call would, without identifying them again
            steps.append(_call(active, function, steps[-1], event))
        return steps

    def _derivation(
        self, members: Sequence[Member], event: Event, edges: Sequence[Edge], steps: Sequence[list[Algorithm]]
    ) -> Derivation:
        known = {id(member.algorithm): member for member in members}
        added = list({id(a): a for order in steps for a in order if id(a) not in known}.values())
        for name, algorithm in zip(unique_names(added, [member.name for member in members]), added, strict=True):
            known[id(algorithm)] = Member.of(algorithm, name, self.registry)
        places = [place for place, active in enumerate(self.active) if active.runs_at(event)]
        orders = [tuple(known[id(a)].name for a in order) for order in steps]
        return Derivation(
            event=event.value,
            given=orders[0],
            steps=tuple(zip(places, orders[1:], strict=True)),
            edges=tuple(edges),
            passes=tuple(active.record for active in self.active),
            members={member.name: AlgorithmRecord.of(member) for member in known.values()},
        )

    def _complain(self, derivation: Derivation) -> None:
        for message, users in self.broken(derivation):
            if users is None:
                raise OrderError(message)
            if not any(users is known for known in self._warned):
                self._warned.append(users)
                warn(message, OrderWarning)


def _resolve(
    distributions: Sequence[str], users: Sequence[tuple[AlgorithmPass, int]], registry: Registry
) -> tuple[ActivePass, ...]:
    """Return the passes of distributions, sorted, with the user's own inserted one by one."""
    source: dict[str, tuple[AlgorithmPass, Origin]] = {}
    shipped = [record for record in registry.records_of("passes") if record.status != "disabled"]
    # The core's come first, so that if a guest's pass has the same name, that is the one to disable.
    for distribution in sorted(distributions, key=lambda name: name != CORE):
        for record in (each for each in shipped if each.distribution == distribution):
            function = registry.load("passes", record.qualified_name)
            name = name_of(function)
            if name in source:
                raise PluginError(
                    f"{source[name][1].distribution} and {distribution} both bring a pass {name!r}; "
                    f"disable one with ENGINE_CORE_DISABLE_PLUGINS={record.qualified_name}"
                )
            source[name] = (function, record.origin)
    if apply_declared_order.__name__ not in source:
        raise PluginError("engine-core's own passes are missing: it is on the path but not installed; pip install it")
    installed = sort_passes(function for function, _ in source.values())
    active = [ActivePass(function, source[name_of(function)][1]) for function in installed]
    # After the installed ones are sorted: the user's own stay where they were put, whatever else is installed, and each
    # index counts those inserted before it.
    for function, index in users:
        active.insert(len(active) if index == -1 else index, ActivePass(function, None))
    return tuple(active)


def sort_passes(passes: Iterable[AlgorithmPass]) -> list[AlgorithmPass]:
    """Sort passes by stage, then by their before and after, then by name; the declared order opens its stage."""
    by_name = {name_of(p): p for p in passes}
    metadata = {name: metadata_of(p) for name, p in by_name.items()}
    edges = [edge for name, declared in metadata.items() for edge in _pass_edges(name, declared)]
    opening = {apply_declared_order.__name__}
    while more := {edge.first for edge in edges if edge.second in opening} - opening:
        opening |= more
    ordered: list[str] = []
    for stage in STAGES:
        names = sorted(name for name in by_name if metadata[name].stage == stage)
        ordered += stable_sort(sorted(names, key=lambda name: name not in opening), edges)
    for edge in edges:
        if edge.second in ordered[: ordered.index(edge.first) if edge.first in ordered else 0]:
            raise OrderError(
                f"pass {edge.first!r} (stage {metadata[edge.first].stage}) can't run before {edge.second!r} "
                f"(stage {metadata[edge.second].stage}), as {edge.declared_by} asks: stages come first"
            )
    return [by_name[name] for name in ordered]


def _pass_edges(name: str, metadata: PassMetadata) -> list[Edge]:
    later = [Edge(name, other, f"pass {name} (before={other!r})") for other in metadata.before]
    return later + [Edge(other, name, f"pass {name} (after={other!r})") for other in metadata.after]


def _sort(known: Mapping[int, Member], edges: Sequence[Edge], given: Sequence[Algorithm], _: Event) -> list[Algorithm]:
    named = {known[id(algorithm)].name: algorithm for algorithm in given}
    return [named[name] for name in stable_sort(list(named), edges)]


def _call(active: ActivePass, function: AlgorithmPass, before: list[Algorithm], event: Event) -> list[Algorithm]:
    """Run a pass on a copy of the list and return the result."""
    try:
        result: object = function(list(before), event)
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
            raise OrderError(f"{active} added {item!r} at {event.name}, which is not an instance with match and apply")
    if (lost or added) and not active.metadata.changes_members:
        what = " and ".join(f"{verb} {', '.join(sorted(n))}" for verb, n in (("lost", lost), ("added", added)) if n)
        raise OrderError(
            f"{active} {what} at {event.name} without declaring changes_members=True: return each algorithm that it "
            "was given once, or mark it with @algorithm_pass(changes_members=True)"
        )
