"""The order and the reasons for it as text."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from ..messages import escaped
from ..passes import Explained
from .explanation import PairReasons, Skipped, Unordered


def format_orders(orders: Mapping[str, Sequence[Explained]]) -> str:
    """Return a paragraph for each event: the algorithms in running order, each with the reason for its place.

    An event with one algorithm is one line, without space to the next such.
    """
    paragraphs = []
    for is_alone, events in itertools.groupby(orders.items(), key=lambda item: len(item[1]) == 1):
        if is_alone:
            paragraphs.append("\n".join(f"{event}: {alone.algorithm} {alone.why}" for event, (alone,) in events))
        else:
            paragraphs += [_paragraph(event, order) for event, order in events]
    return printable("\n\n".join(paragraphs))


def format_unordered(unordered: Mapping[str, Unordered]) -> str:
    """Return a paragraph for each event without an order: why, then its algorithms in the order given."""
    paragraphs = []
    for event, there in unordered.items():
        why = there.why.replace("\n", "\n  ")
        paragraphs.append("\n".join([event, f"  no order: {why}", *(f"  - {m.algorithm}" for m in there.members)]))
    return printable("\n\n".join(paragraphs))


def format_skipped(skipped: Sequence[Skipped]) -> str:
    """Return a paragraph with a line for each thing that has no effect; empty if there is none."""
    if not skipped:
        return ""
    return printable("\n".join(["skipped", *(f"  {s.what}: {s.why}" for s in skipped)]))


def format_pair(reasons: PairReasons | str) -> str:
    """Return which of two runs first, what decided it, and then each reason in turn."""
    if isinstance(reasons, str):
        return printable(reasons)
    head = f"{reasons.event}: {reasons.first} runs before {reasons.second}, {reasons.why}"
    width = max(len(step.by) for step in reasons.steps)
    steps = [f"  {step.by.ljust(width)}  {step.effect}" for step in reasons.steps]
    declared = [f"  declared: {', and '.join(chain)}" for chain in reasons.declared]
    return printable("\n".join([head, *steps, *(declared or ["  no constraint is declared between the two"])]))


def printable(text: str) -> str:
    """Escape characters that a terminal would obey or not show, except line ends."""
    return escaped(text, keep="\n")


def _paragraph(event: str, order: Sequence[Explained]) -> str:
    width = max(len(explained.algorithm) for explained in order)
    lines = [f"  {place}. {e.algorithm.ljust(width)}  {e.why}" for place, e in enumerate(order, start=1)]
    return "\n".join([event, *lines])
