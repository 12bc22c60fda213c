"""What differs between the ranks of a run: saved in each rank's part of a checkpoint, and given back to that rank."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

import torch

from ...checkpoint import Piece, flatten
from ...parallel import in_pieces
from ...ranks import Ranks

Parts = Mapping[str, Mapping[str, Any]]
"""States by kind, such as `algorithms`, and name."""


def gather_parts(ranks: Ranks, parts: Parts, **own: Any) -> list[dict[str, Any]]:
    """Return for each rank its `own` and, by kind and name, the states that are not the same on all ranks."""
    if ranks.size == 1:
        return []
    marks = ranks.each({kind: {name: _mark(state) for name, state in states.items()} for kind, states in parts.items()})
    differing = {
        kind: {name: state for name, state in states.items() if _differs(marks, kind, name)}
        for kind, states in parts.items()
    }
    return ranks.each({**own, **differing})


def part_of_rank(saved: list[Any], ranks: Ranks) -> dict[str, Any] | None:
    """Return a rank's part of what was saved; None for a rank of a run that had another number of them."""
    return saved[ranks.rank] if len(saved) == ranks.size else None


def states_of_rank(saved: list[Any], ranks: Ranks, kind: str, states: Mapping[str, Any]) -> dict[str, Any]:
    """Return the states that a rank resumes: those of all ranks, with its own where ranks differ.

    A rank that the saved run did not have starts those afresh.
    """
    part = part_of_rank(saved, ranks)
    if part is not None:
        return {**states, **part[kind]}
    differing = {name for each in saved for name in each[kind]} if ranks.rank else set()
    return {name: state for name, state in states.items() if name not in differing}


def _differs(marks: list[Any], kind: str, name: str) -> bool:
    """Do the ranks that have this state have different ones? A rank may lack a callback."""
    return len({each[kind][name] for each in marks if name in each[kind]}) > 1


def _mark(state: Any) -> int:
    """Return a number that differs if a state differs, as good as surely."""
    tensors: dict[str, Any] = {}
    mark = zlib.crc32(json.dumps(flatten(in_pieces(state), "state", tensors)).encode())
    for tensor in tensors.values():
        if isinstance(tensor, Piece):  # each rank has another
            continue
        whole = tensor.detach().cpu().contiguous().reshape(-1)
        data: Any = whole.view(torch.uint8).numpy() if whole.numel() else b""
        mark = zlib.crc32(data, mark)
    return mark
