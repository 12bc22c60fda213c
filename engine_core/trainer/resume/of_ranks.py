"""What differs between the ranks of a run: saved in each rank's part of a checkpoint, and given back to that rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...parallel import mark_of
from ...ranks import Ranks

Parts = Mapping[str, Mapping[str, Any]]
"""States by kind, such as `algorithms`, and name."""


def gather_parts(ranks: Ranks, parts: Parts, **own: Any) -> list[dict[str, Any]]:
    """Return for each rank its `own` and, by kind and name, those entries of states that differ between ranks."""
    if ranks.size == 1:
        return []
    marks = ranks.each(
        {
            kind: {name: {str(key): mark_of(value) for key, value in state.items()} for name, state in states.items()}
            for kind, states in parts.items()
        }
    )
    differing = {
        kind: {
            name: {key: value for key, value in state.items() if _differs(marks, kind, name, str(key))}
            for name, state in states.items()
        }
        for kind, states in parts.items()
    }
    return ranks.each({**own, **differing})


def part_of_rank(saved: list[Any], ranks: Ranks) -> dict[str, Any] | None:
    """Return a rank's part of what was saved; None for a rank of a run that had another number of them."""
    return saved[ranks.rank] if len(saved) == ranks.size else None


def states_of_rank(saved: list[Any], ranks: Ranks, kind: str, states: Mapping[str, Any]) -> dict[str, Any]:
    """Return the states that a rank resumes: those of all ranks, with its own entries where ranks differ.

    Of a run with another number of ranks, all resume what rank 0 had.
    """
    own = (part_of_rank(saved, ranks) or {}).get(kind, {})
    return {name: {**states.get(name, {}), **own.get(name, {})} for name in {**states, **own}}


def _differs(marks: list[Any], kind: str, name: str, key: str) -> bool:
    """Do the ranks that have this state differ in an entry? A rank may lack a callback, and with it its state."""
    return len({each[kind][name].get(key) for each in marks if name in each[kind]}) > 1
