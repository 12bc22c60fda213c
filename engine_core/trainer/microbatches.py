"""Microbatches of a step: what is said where one fails, and what runs while other ranks have more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..batch import Batches
from ..embed import keep_modules
from ..objective import as_nothing
from ..state import State


def place_of(number: int, pieces: Sequence[Any], batches: Batches) -> str:
    """Return which microbatch something happened in, and which rows it had."""
    sizes = [batches.rows(piece) for piece in pieces]
    start = sum(sizes[:number])
    rows = f"row {start}" if sizes[number] == 1 else f"rows {start} to {start + sizes[number] - 1}"
    return f"in microbatch {number + 1} of {len(pieces)} ({rows} of {sum(sizes)})"


def take_part(state: State, forward: Callable[..., Any], given_of: Callable[..., Any], called: Any) -> None:
    """Run forward and backward again, because other ranks have more microbatches and wait; its loss counts nothing.

    No event is fired, and the model's buffers stay as they are: the rows count once.
    """
    model: Any = state.model
    put_back = keep_modules(model, model.buffers(), attributes=False)
    outputs = forward(called, state.batch)
    loss = state.objective.counted(given_of(model, outputs, state.batch), outputs, state.batch)
    as_nothing(loss.sum).backward()  # type: ignore[no-untyped-call]
    put_back()
