"""Why one algorithm runs before another: the effect of the list, each pass and each declaration."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ArgumentError, did_you_mean
from ..messages import enumerated
from ..passes import DECLARED, FILO, Derivation, Edge, precedes
from .explanation import Explanation, changes_in


@dataclass(frozen=True)
class Step:
    """The effect of the list or a pass on two algorithms; `order`: those of the two that are there, in order."""

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
    """Return the unique name of the algorithm that has this unique or registered name.

    Raises:
        ArgumentError: (a ValueError) if there is none, with the nearest name, or several.
    """
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

    Raises:
        ArgumentError: (a ValueError) if both are the same.

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
        return "; ".join([f"{enumerated(absent)} {verb} not run at {event}", *reasons])
    if (ahead := precedes(one, other, derivation.final)) is None:
        return _taken_out(derivation, one, other)
    first, second = (one, other) if ahead else (other, one)
    reason, steps = derivation.reason(first, second).text, _steps(derivation, first, second)
    return PairReasons(event, first, second, reason, steps, _declared(derivation, first, second))


def _taken_out(derivation: Derivation, one: str, other: str) -> str:
    said = []
    for name in (one, other):
        if name not in derivation.final:
            changes = changes_in(derivation)
            *_, taken = [place for place, before, after in changes if name in before and name not in after]
            said.append(f"{name} does not run at {derivation.event}: {derivation.passes[taken]} takes it out")
    return "; ".join(said)


def _steps(derivation: Derivation, first: str, second: str) -> tuple[Step, ...]:
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
    return " and ".join(f"{verb} {enumerated(sorted(n))}" for verb, n in (("adds", added), ("takes out", lost)) if n)


def _declared(derivation: Derivation, first: str, second: str) -> tuple[tuple[str, ...], ...]:
    """Return each direct declaration, either way round, and the shortest chain through others."""
    pair = {(first, second), (second, first)}
    found: list[tuple[Edge, ...]] = [(edge,) for edge in derivation.edges if (edge.first, edge.second) in pair]
    if not found:
        found = [tuple(chain) for ends in sorted(pair) if (chain := derivation.chain(*ends))]
    return tuple(tuple(f"{e.first} before {e.second}: declared by {e.declared_by}" for e in chain) for chain in found)
