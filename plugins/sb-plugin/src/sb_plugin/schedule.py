"""When batches are pruned. Independent of the engine."""

from __future__ import annotations

__all__ = ["should_selective_backprop"]


def should_selective_backprop(
    current_duration: float, batch_idx: int, start: float = 0.5, end: float = 0.9, interrupt: int = 2
) -> bool:
    """Return whether this training step is a selective one.

    Args:
        current_duration: the fraction of training that is done, in [0, 1).
        batch_idx: the number of the batch in its epoch, from 0.
        start, end: the interval in which batches are pruned, `start` included, `end` not.
        interrupt: every `interrupt`-th batch of an epoch is an ordinary step; 0: none.

    Example:
        >>> [should_selective_backprop(0.5, batch) for batch in range(4)]
        [True, False, True, False]
    """
    return start <= current_duration < end and (interrupt == 0 or (batch_idx + 1) % interrupt != 0)
