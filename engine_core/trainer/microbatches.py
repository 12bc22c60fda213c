"""By what gradients of microbatches are multiplied, and what did not fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..batch import Batches
from ..errors import OutOfMemoryError, add_note
from ..loop import keep_modules
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


_SAID_BY_TORCH = ("out of memory", "ALLOC_FAILED", "can't allocate memory", "not enough memory")
"""Parts of the RuntimeErrors of CUDA, its libraries, MPS, and the CPU's allocators."""


def explain_out_of_memory(error: Exception, state: State, place: str, remedy: str) -> None:
    """Raise an OutOfMemoryError from `error` if that reports a lack of memory, else return."""
    says_so = isinstance(error, RuntimeError) and any(words in str(error) for words in _SAID_BY_TORCH)
    is_lack = says_so or isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError))
    if isinstance(error, OutOfMemoryError) or not is_lack:
        return
    said = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}".removesuffix(": ")
    explained = OutOfMemoryError(f"out of memory on {state.device} {place}: {remedy}. {said}")
    for note in getattr(error, "__notes__", ()):
        add_note(explained, note)
    raise explained from error


def place_in_training(state: State, rows: int, microbatch_size: int | None, *, is_same: bool) -> tuple[str, str]:
    """Return where a step was, with its number of rows, and what would need less memory.

    Args:
        is_same: is it known that microbatches give the same gradients?
    """
    now, at_once = state.timestamp, rows if microbatch_size is None else min(rows, microbatch_size)
    how = "all of them at once" if microbatch_size is None else f"in microbatches of {microbatch_size}"
    place = f"at batch {now.batch} (epoch {now.epoch}) with {rows} rows, {how}"
    if at_once > 1:
        fewer = f"set microbatch_size={max(1, at_once // 2)} or less"
        return place, f"{fewer}, which trains with the same gradients and batches of {rows}" if is_same else fewer
    mixed = "precision='amp_bf16', " if state.precision == "fp32" else ""
    return place, f"a single row is too much: try {mixed}an optimizer with less state, or a smaller model"
