"""The order at each event with everything that led to it, as data: what is shown, and what a manifest keeps."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import BaseModel, model_validator

from ..errors import ArgumentError, did_you_mean, suggestion
from ..event import Event
from ..messages import in_html, join_words, table_in_html
from ..metadata import ORDERING
from ..passes import (
    DECLARED,
    FILO,
    AlgorithmRecord,
    Derivation,
    Edge,
    Explained,
    Member,
    PassList,
    PassRecord,
    precedes,
    referred,
    table_of,
)


def skipped_by(members: Sequence[Member], passes: PassList, events: tuple[str, ...]) -> Iterator[Skipped]:
    """Yield what has no effect at some of the events that algorithms list."""
    if not events:
        return
    for record in passes.registry.records:
        if record.kind == "passes" and record.status == "disabled" and record.distribution in passes.distributions:
            yield Skipped(record.title, f"disabled: {record.reason}", events)
    for active in (each.record for each in passes.active):
        if active.events is not None and (absent := tuple(event for event in events if event not in active.events)):
            yield Skipped(active.title, f"runs at {join_words(active.events)} only", absent)
    for member in (m for m in members if m.finished):
        listed = tuple(event.value for event in Event if event in member.events)
        yield Skipped(member.title, "it has finished, and is not asked any more", listed)
    yield from _references(members)
    yield from _unlisted(members, passes)


def _references(members: Sequence[Member]) -> Iterator[Skipped]:
    """Yield the declared constraints without effect, since the other algorithm is absent or shares no event."""
    for member in members:
        for relation in ORDERING:
            for reference in getattr(member.metadata, relation):
                others = referred(reference, member, members)
                if not any(other.events & member.events for other in others):
                    names = " and ".join(other.name for other in others)
                    why = f"{names} shares no event with it" if others else _absent(reference, members)
                    listed = tuple(event.value for event in Event if event in member.events)
                    yield Skipped(f"{member.title}: {relation}={reference!r}", why, listed)


def _absent(reference: str, members: Sequence[Member]) -> str:
    known = [name for m in members for name in (m.registered, *(f"@{tag}" for tag in m.metadata.tags))]
    what = "tag" if reference.startswith("@") else "name"
    return f"no algorithm here has that {what}{suggestion(reference, known, cutoff=0.8)}"


def _unlisted(members: Sequence[Member], passes: PassList) -> Iterator[Skipped]:
    """Yield the names in tables of `explicit_order` that don't run at the event."""
    for active in passes.active:
        for event, names in table_of(active.function).items():
            for name in names:
                named = [member for member in members if member.is_called(name)]
                if not any(event in member.events for member in named):
                    titles = ", ".join(member.title for member in named)
                    why = f"{titles} does not list {event.value}" if named else _absent(name, members)
                    yield Skipped(f"{active}: {name!r} at {event.value}", why, (event.value,))


@dataclass(frozen=True)
class Skipped:
    """Something that has no effect at some events, and why."""

    what: str
    why: str
    events: tuple[str, ...]


@dataclass(frozen=True)
class Unordered:
    """The algorithms of an event that can't be ordered, in the user's order, and why: usually a cycle."""

    members: tuple[AlgorithmRecord, ...]
    why: str


@dataclass(frozen=True)
class Explanation(Mapping[str, "list[Explained]"]):
    """The order at each event that an algorithm lists, by the event's value, as if all those that list it matched.

    Args:
        algorithms: in the user's order.
        passes: in running order.
        derivations: by event, how the order there came about.
        unordered: the events whose algorithms have no order; these are not keys.
        skipped: passes, references and names that have no effect, with the reason.
        problems: what keeps an engine from accepting these algorithms.
        warnings: what an engine warns about when it accepts them.
    """

    algorithms: tuple[AlgorithmRecord, ...] = ()
    passes: tuple[PassRecord, ...] = ()
    derivations: Mapping[str, Derivation] = field(default_factory=dict)
    unordered: Mapping[str, Unordered] = field(default_factory=dict)
    skipped: tuple[Skipped, ...] = ()
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def __getitem__(self, event: str) -> list[Explained]:
        return [explained for explained, _ in self.derivations[event].places()]

    def __iter__(self) -> Iterator[str]:
        return (event for event, derivation in self.derivations.items() if derivation.final)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _repr_html_(self) -> str:
        """Return a table for each event, for a notebook."""
        parts = []
        for event, records in self.records().items():
            told = [
                (r["algorithm"], f"{r['distribution'] or 'you'} {r['version'] or ''}".rstrip(), r["why"])
                for r in records
            ]
            rows = [(place, *cells) for place, cells in enumerate(told, start=1)]
            parts.append(table_in_html(("place", "algorithm", "from", "why"), rows, event))
        if self.skipped:
            parts.append(table_in_html(("what", "why"), [(s.what, s.why) for s in self.skipped], "skipped"))
        parts += [f"<p>problem: {in_html(text)}</p>" for text in self.problems]
        parts += [f"<p>warning: {in_html(text)}</p>" for text in self.warnings]
        return "\n".join(parts) or "<p>no algorithm at any event</p>"

    def records(self) -> dict[str, list[dict[str, Any]]]:
        """Return the algorithms of each event for JSON, each with its reason; where there is no order, that says so."""
        found: dict[str, list[dict[str, Any]]] = {}
        for event in self:
            places = self.derivations[event].places()
            found[event] = [
                {**place._asdict(), "reason": {k: v for k, v in reason._asdict().items() if k != "text"}}
                for place, reason in places
            ]
        for event, unordered in self.unordered.items():
            why = f"no order: {unordered.why}"
            none = {"kind": "none", "by": None, "distribution": None}
            told = [Explained(m.algorithm, m.name, why, m.distribution, m.version) for m in unordered.members]
            found[event] = [{**place._asdict(), "reason": none} for place in told]
        return found

    def to_json(self) -> dict[str, Any]:
        """Return what a manifest keeps, from which `Told` restores the explanation without any plugin."""
        return {
            "algorithms": [asdict(algorithm) for algorithm in self.algorithms],
            "passes": [asdict(record) for record in self.passes],
            "order": {event: [explained._asdict() for explained in order] for event, order in self.items()},
            "steps": {event: _steps(derivation) for event, derivation in self.derivations.items()},
            "skipped": [asdict(skipped) for skipped in self.skipped],
            "warnings": list(self.warnings),
        }


class Steps(BaseModel, defer_build=True):
    """What a manifest keeps of a derivation: passes that left the list as it was are left out."""

    given: tuple[str, ...]
    passes: list[tuple[int, tuple[str, ...]]] = []
    declared: list[Edge] = []
    added: list[AlgorithmRecord] = []


class Told(BaseModel, defer_build=True):
    """What a manifest says about the order."""

    algorithms: list[AlgorithmRecord]
    passes: list[PassRecord]
    order: dict[str, list[Explained]]
    steps: dict[str, Steps]
    skipped: list[Skipped] = []
    warnings: list[str] = []

    @model_validator(mode="after")
    def _check_steps(self) -> Told:
        """Refuse steps that give no reasons."""
        for event in self.steps:
            derivation = self._derivation(event, self.steps[event])
            orders = [derivation.given, *(order for _, order in derivation.steps)]
            there = {name for order in orders for name in order}
            if wrong := sorted(there.symmetric_difference(derivation.members)):
                raise ValueError(f"steps of {event!r}: {wrong[0]!r} is not both among the algorithms and in an order")
        return self

    def explanation(self) -> Explanation:
        """Return the explanation as it was when the run began."""
        return Explanation(
            algorithms=tuple(self.algorithms),
            passes=tuple(self.passes),
            derivations={event: self._derivation(event, steps) for event, steps in self.steps.items()},
            skipped=tuple(self.skipped),
            warnings=tuple(self.warnings),
        )

    def _derivation(self, event: str, kept: Steps) -> Derivation:
        changed, current, steps = dict(kept.passes), kept.given, []
        for place, record in enumerate(self.passes):
            if record.events is None or event in record.events:
                current = changed.get(place, current)
                steps.append((place, current))
        here = [*(a for a in self.algorithms if a.algorithm in kept.given), *kept.added]
        members = {member.algorithm: member for member in here}
        return Derivation(event, kept.given, tuple(steps), tuple(kept.declared), tuple(self.passes), members)


def changes_in(derivation: Derivation) -> Iterator[tuple[int, tuple[str, ...], tuple[str, ...]]]:
    """Yield the index of each pass that changed the list, and the list before and after it."""
    for (_, before), (place, after) in itertools.pairwise([(-1, derivation.given), *derivation.steps]):
        if before != after:
            yield place, before, after


def _steps(derivation: Derivation) -> dict[str, Any]:
    changed = [[place, list(after)] for place, _, after in changes_in(derivation)]
    added = [asdict(member) for name, member in derivation.members.items() if name not in derivation.given]
    declared = [edge._asdict() for edge in derivation.edges]
    return {"given": list(derivation.given), "passes": changed, "declared": declared, "added": added}


@dataclass(frozen=True)
class Step:
    """The effect of the list or a pass on two algorithms; `order`: whichever of the two are present, in order."""

    by: str
    effect: str
    order: tuple[str, ...]


@dataclass(frozen=True)
class PairReasons:
    """Which of two runs first at an event, and every reason.

    Args:
        first, second: in running order.
        why: what decided it.
        steps: the user's list, then each pass that ran.
        declared: what they declare about each other, alone or through others: chains of `X before Y: declared by`.
    """

    event: str
    first: str
    second: str
    why: str
    steps: tuple[Step, ...]
    declared: tuple[tuple[str, ...], ...]


def find_algorithm(explanation: Explanation, name: str) -> str:
    """Return the unique name of the one algorithm that has this unique or registered name, or raise ArgumentError."""
    named = [a.algorithm for a in explanation.algorithms]
    if name in named:
        return name
    found = [a.algorithm for a in explanation.algorithms if a.name == name]
    if len(found) > 1:
        raise ArgumentError(f"{name!r} names several algorithms: {', '.join(found)}; choose one")
    if not found:
        known = [*named, *(a.name for a in explanation.algorithms)]
        raise ArgumentError(f"{name!r} is not one of the algorithms{did_you_mean(name, known)}")
    return found[0]


def why(explanation: Explanation, one: str, other: str, event: str) -> PairReasons | str:
    """Return why two algorithms, by their unique names, run in this order at an event, or why there is no order.

    Example:
        >>> why(Explanation(), "Flip", "Pad", "init")
        'Flip and Pad do not run at init'
    """
    if one == other:
        raise ArgumentError(f"{one!r} and {other!r} are the same algorithm")
    listed = {a.algorithm: a.events for a in explanation.algorithms}
    derivation, unordered = explanation.derivations.get(event), explanation.unordered.get(event)
    present = {m.algorithm: m for m in unordered.members} if unordered else derivation.members if derivation else {}
    absent = [name for name in (one, other) if name not in present]
    if unordered and not absent:
        return f"{one} and {other} have no order at {event}: {unordered.why}"
    if derivation is None or absent:
        reasons = [f"{name} lists {', '.join(listed[name] or ())}" for name in absent if listed.get(name)]
        verb = "do" if len(absent) > 1 else "does"
        return "; ".join([f"{join_words(absent)} {verb} not run at {event}", *reasons])
    if (ahead := precedes(one, other, derivation.final)) is None:
        return _taken_out(derivation, one, other)
    first, second = (one, other) if ahead else (other, one)
    reason, steps = derivation.reason(first, second).text, _steps_of_pair(derivation, first, second)
    return PairReasons(event, first, second, reason, steps, _declared(derivation, first, second))


def _taken_out(derivation: Derivation, one: str, other: str) -> str:
    taken = {
        name: derivation.passes[place]
        for place, before, after in changes_in(derivation)
        for name in (one, other)
        if name in before and name not in (*after, *derivation.final)
    }
    return "; ".join(f"{name} does not run at {derivation.event}: {by} takes it out" for name, by in taken.items())


def _steps_of_pair(derivation: Derivation, first: str, second: str) -> tuple[Step, ...]:
    before = _those_of(first, second, derivation.given)
    said = " before ".join(before) if len(before) == 2 else f"only {before[0]}" if before else "neither"
    steps = [Step("your list", said, before)]
    for place, order in derivation.steps:
        after = _those_of(first, second, order)
        record = derivation.passes[place]
        reason = ": FILO, the list is reversed on AFTER events" if record.is_core(FILO) else ""
        if record.is_core(DECLARED) and after != before:
            chained = derivation.chain(*after)
            reason = f": {derivation.reason(*after).text if chained else 'side effect of other declared constraints'}"
        steps.append(Step(record.title, f"{_effect(before, after)}{reason if after != before else ''}", after))
        before = after
    return tuple(steps)


def _those_of(first: str, second: str, order: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in order if name in (first, second))


def _effect(before: tuple[str, ...], after: tuple[str, ...]) -> str:
    if before == after:
        return "keeps this order"
    if len(before) == len(after) == 2:
        return f"puts {after[0]} before {after[1]}"
    added, lost = set(after) - set(before), set(before) - set(after)
    return " and ".join(f"{verb} {join_words(sorted(n))}" for verb, n in (("adds", added), ("takes out", lost)) if n)


def _declared(derivation: Derivation, first: str, second: str) -> tuple[tuple[str, ...], ...]:
    """Return each direct declaration, either way round, and the shortest chain through others."""
    pair = {(first, second), (second, first)}
    found: list[tuple[Edge, ...]] = [(edge,) for edge in derivation.edges if (edge.first, edge.second) in pair]
    if not found:
        found = [tuple(chain) for ends in sorted(pair) if (chain := derivation.chain(*ends))]
    return tuple(tuple(f"{e.first} before {e.second}: declared by {e.declared_by}" for e in chain) for chain in found)
