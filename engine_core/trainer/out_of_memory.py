"""Explain running out of memory: which rows did not fit, and what to set. Knows no loop."""

from __future__ import annotations

import torch

from ..errors import OutOfMemoryError, add_note
from ..state import State

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
