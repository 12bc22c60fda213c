"""The order at each event with everything that led to it, as data: what is shown, and what a manifest keeps."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import BaseModel, model_validator

from ..messages import in_html, table_in_html
from ..passes import AlgorithmRecord, Derivation, Edge, Explained, PassRecord


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
            told = [(r["algorithm"], _shipped_by(r) or "you", r["why"]) for r in records]
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


def _shipped_by(record: Mapping[str, Any]) -> str:
    return " ".join(filter(None, (record["distribution"], record["version"])))


def _steps(derivation: Derivation) -> dict[str, Any]:
    changed = [[place, list(after)] for place, _, after in changes_in(derivation)]
    added = [asdict(member) for name, member in derivation.members.items() if name not in derivation.given]
    declared = [edge._asdict() for edge in derivation.edges]
    return {"given": list(derivation.given), "passes": changed, "declared": declared, "added": added}
