"""How the order at one event came about, as plain data: the list after each pass, and the reasons.

It can be saved and read back, to explain a run without its plugins installed.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from ..metadata import Stage
from ..registry import CORE, Origin
from .member import Edge, Member

FILO, DECLARED = "set_filo_order", "apply_declared_order"


class Explained(NamedTuple):
    """One algorithm in the order of an event: its unique name, its registered name, and why it is there."""

    algorithm: str
    name: str
    why: str
    distribution: str | None = None
    version: str | None = None

    @property
    def origin(self) -> Origin | None:
        """What ships it; None: the user's own."""
        return Origin.of(self.distribution, self.version)


class Reason(NamedTuple):
    """What decided that one algorithm comes before another, as a sentence and for programs.

    Args:
        kind: `declared` by an algorithm, an installed `pass`, a pass of the `user`, `filo`, `list` position, `added` by
            a pass, or `only` one.
        by: name of the algorithm or pass; for a chain of declarations, the first one's.
        distribution: what ships it; None: the user, or nothing.
    """

    kind: Literal["declared", "pass", "user", "filo", "list", "added", "only"]
    text: str
    by: str | None = None
    distribution: str | None = None


@dataclass(frozen=True)
class AlgorithmRecord:
    """An algorithm in an engine: its unique and registered names, its distribution (None: the user), its events."""

    algorithm: str
    name: str
    distribution: str | None
    version: str | None
    events: tuple[str, ...] | None

    @classmethod
    def of(cls, member: Member) -> AlgorithmRecord:
        """Record a member."""
        events, (distribution, version) = member.metadata.events, member.origin or (None, None)
        listed = None if events is None else tuple(str(event) for event in events)
        return cls(member.name, member.registered, distribution, version, listed)


@dataclass(frozen=True)
class PassRecord:
    """A pass in an engine, its distribution (None: the user), and its events (None: all)."""

    name: str
    distribution: str | None
    version: str | None
    stage: Stage
    events: tuple[str, ...] | None

    def __str__(self) -> str:
        return f"pass {self.name!r} of {self.distribution}" if self.distribution else f"your pass {self.name!r}"

    @property
    def title(self) -> str:
        """The pass with its distribution's version."""
        return f"{self} {self.version or '?'}" if self.distribution else str(self)

    def is_core(self, name: str) -> bool:
        """Is it the core's own pass of this name?"""
        return (self.name, self.distribution) == (name, CORE)


@dataclass(frozen=True)
class Derivation:
    """How the order at an event came about; algorithms are given by their unique names.

    Args:
        given: the user's list.
        steps: for each pass that ran, its index in `passes` and the list it returned.
        edges: what algorithms declare about each other here.
        members: the algorithms of the list, and those that passes added.
    """

    event: str
    given: tuple[str, ...]
    steps: tuple[tuple[int, tuple[str, ...]], ...]
    edges: tuple[Edge, ...] = ()
    passes: tuple[PassRecord, ...] = field(default=(), repr=False)
    members: Mapping[str, AlgorithmRecord] = field(default_factory=dict, repr=False)

    @property
    def final(self) -> tuple[str, ...]:
        """The running order."""
        return self.steps[-1][1] if self.steps else self.given

    def places(self) -> list[tuple[Explained, Reason]]:
        """Return the final order, with why each comes after its predecessor, and why the first comes first."""
        final = self.final
        pairs = list(itertools.pairwise(final))
        reasons = [self.reason(*pair) for pair in pairs[:1] + pairs] or [Reason("only", "runs alone")]
        beside = [f"before {final[1]}: ", *(f"after {name}: " for name in final)] if pairs else [""]
        found = []
        for name, where, reason in zip(final, beside, reasons, strict=False):
            member = self.members[name]
            told = Explained(name, member.name, where + reason.text, member.distribution, member.version)
            found.append((told, reason))
        return found

    def reason(self, first: str, second: str) -> Reason:
        """Return what decided that `first` comes before `second`."""
        declared = next((edge for edge in self.edges if (edge.first, edge.second) == (first, second)), None)
        if declared is not None:
            return self._declared([declared])
        for name in (first, second):
            if name not in self.given:
                by = self.passes[next(place for place, order in self.steps if name in order)]
                return Reason("added", f"{name} was added by {by}", by.name, by.distribution)
        place = self.last_flip(first, second)
        return Reason("list", "list position") if place is None else self._turned(self.passes[place], first, second)

    def _turned(self, by: PassRecord, first: str, second: str) -> Reason:
        if by.is_core(FILO):
            return Reason("filo", "FILO, the list is reversed on AFTER events", by.name, by.distribution)
        if by.is_core(DECLARED):
            if chain := self.chain(first, second):
                return self._declared(chain)
            return Reason("pass", "side effect of other declared constraints", by.name, by.distribution)
        return Reason("pass" if by.distribution else "user", str(by), by.name, by.distribution)

    def _declared(self, chain: Sequence[Edge]) -> Reason:
        text = " and ".join(f"declared by {edge.declared_by}" for edge in chain)
        ends = (chain[0].first, chain[0].second)
        by = next((name for name in ends if chain[0].declared_by.startswith(f"{name} (")), None)
        member = self.members.get(by or "")
        return Reason("declared", text, by, member.distribution if member else None)

    def last_flip(self, first: str, second: str) -> int | None:
        """Return the index of the last pass that put `first` before `second`; None: the list did."""
        stages = [(-1, self.given), *self.steps]
        for (_, before), (place, after) in reversed(list(itertools.pairwise(stages))):
            if precedes(first, second, after) and precedes(first, second, before) is not True:
                return place
        return None

    def chain(self, first: str, second: str) -> list[Edge]:
        """Return the shortest chain of declared constraints from `first` to `second`; empty if there is none."""
        reached: dict[str, list[Edge]] = {first: []}
        ends = [first]
        while ends:
            end = ends.pop(0)
            for edge in self.edges:
                if edge.first == end and edge.second not in reached:
                    reached[edge.second] = [*reached[end], edge]
                    ends.append(edge.second)
        return reached.get(second, [])


def precedes(first: object, second: object, order: Sequence[object]) -> bool | None:
    """Does `first` come before `second`? None if one of them is absent."""
    if first not in order or second not in order:
        return None
    return order.index(first) < order.index(second)
