"""When memory runs out: which rows did not fit, and what to set. Knows no loop."""

from __future__ import annotations

import torch

from ..errors import OutOfMemoryError, add_note
from ..state import State

__all__ = ["explain_out_of_memory"]

_SAID_BY_TORCH = ("out of memory", "can't allocate memory", "not enough memory")
"""Parts of the messages of CUDA and MPS, and of the CPU's allocator on Linux and on Windows, a RuntimeError each."""


def explain_out_of_memory(error: Exception, state: State, rows: int, microbatch_size: int | None) -> None:
    """Raise an OutOfMemoryError from `error` if it says that memory has run out, and return otherwise.

    Args:
        rows: of the batch, as it came from the loader in work.
        microbatch_size: how many went through the model at once in training; None: all.
    """
    if isinstance(error, OutOfMemoryError) or not _is_out_of_memory(error):
        return
    now, label = state.timestamp, state.dataloader_label
    if label != "train":
        where = f"in the evaluation on {label!r} with batches of {rows} rows"
        remedy = f"give the loader {label!r} a smaller batch_size"
    else:
        at_once = "all of them at once" if microbatch_size is None else f"in microbatches of {microbatch_size}"
        where = f"at batch {now.batch} (epoch {now.epoch}) with {rows} rows, {at_once}"
        remedy = _remedy(rows, rows if microbatch_size is None else min(rows, microbatch_size), state.precision)
    explained = OutOfMemoryError(f"out of memory on {state.device} {where}: {remedy}. {_first_line(error)}")
    for note in getattr(error, "__notes__", ()):
        add_note(explained, note)
    raise explained from error


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _SAID_BY_TORCH)


def _remedy(rows: int, at_once: int, precision: str) -> str:
    if at_once > 1:
        return (
            f"set microbatch_size={max(1, at_once // 2)} or less, which trains with the same gradients "
            f"and batches of {rows}"
        )
    mixed = "precision='amp_bf16', " if precision == "fp32" else ""
    return f"a single row is too much: try {mixed}an optimizer with less state, or a smaller model"


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}".removesuffix(": ")
