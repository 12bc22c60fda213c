"""SequenceWarmup as an algorithm of the engine: glue between State, the schedule and the cutting of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from engine_core import Algorithm, AlgorithmMetadata, Event, Logger, State, Time
from engine_core.arguments import check_flag, check_interval
from engine_core.batch import BatchKey
from engine_core.errors import ArgumentError
from engine_core.time import TimeUnit

from .cutting import NAME, check_keys, cut_up, guess_keys, lengths_of, truncated
from .lengths import check_lengths, cut_length, length_at

__all__ = ["SequenceWarmup"]


class SequenceWarmup(Algorithm):
    """Begin training with short sequences, and end with those of full length.

    Source: Li et al. 2022, The Stability-Efficiency Dilemma: Investigating Sequence Length Warmup for Training GPT
    Models, arXiv 2108.06084. See `warmup_length` for the schedule. Rows are cut up into more rows, so that no token is
    lost, or, as in the paper, truncated. The clock counts samples and tokens as the loader gives them.

    Args:
        duration: how long sequences grow, in `dur`, `ep`, `ba`, `sp`, `tok` or `sec`.
        min_seq_length: the length at the start, in tokens. Rows that are cut up need a multiple of it.
        max_seq_length: the length at the end, in tokens, for rows of several lengths; None: that of the batch's rows.
        step_size: lengths in between are multiples of it.
        truncate: leave out the ends of rows instead of cutting rows up?
        keys: where the tensors (n, length, ...) to cut are in a batch; None: what the model and the loss take, if that
            is certain, see `guess_keys`.

    Raises:
        ArgumentError, ArgumentTypeError: (a ValueError, a TypeError) for an invalid argument.

    Example:
        >>> SequenceWarmup(duration="2000ba", min_seq_length=64).truncate
        False
    """

    metadata: ClassVar[AlgorithmMetadata] = AlgorithmMetadata(
        name=NAME,
        description="start with shorter sequences and end with full-length ones",
        events=(Event.AFTER_DATALOADER,),
        tags=("sequence_cutting",),
        after=("@batch_pruning",),
        conflicts=("@sequence_cutting",),
        writes=("batch",),
    )

    def __init__(
        self,
        duration: Time | str = "0.3dur",
        min_seq_length: int = 8,
        max_seq_length: int | None = None,
        step_size: int = 8,
        *,
        truncate: bool = False,
        keys: Sequence[BatchKey] | None = None,
    ) -> None:
        self.duration = check_interval("duration", duration)
        self.min_seq_length, self.max_seq_length, self.step_size = check_lengths(
            min_seq_length, max_seq_length, step_size
        )
        self.truncate = check_flag("truncate", truncate)
        self.keys = check_keys(keys)
        if self.duration.unit is TimeUnit.DURATION:
            own = self.metadata.replace(needs=("duration",))
            self.metadata = own  # type: ignore[misc]  # this instance's own

    def match(self, event: Event, state: State) -> bool:
        """After the dataloader, until sequences have their full length."""
        return event is Event.AFTER_DATALOADER and state.get_progress(self.duration) < 1

    def validate(self, state: State) -> None:
        """Raise if the length of training is not known, or the first batch can't be cut."""
        state.get_progress(self.duration)
        batches = state.batches
        if any(batches.dim.values()):
            raise ArgumentError(f"{NAME} cuts tensors (n, length, ...), and {batches!r} has rows in another dimension")
        if not self.truncate and (batches.count or batches.take):
            raise ArgumentError(
                f"{NAME} can't repeat what belongs to the rows of a batch that {batches!r} takes apart: set "
                "truncate=True, which leaves their number as it is"
            )
        keys = self._keys_in(state)
        _, full = lengths_of(state.batch, keys)
        if full <= self.min_seq_length:
            raise ArgumentError(
                f"rows of {full} tokens are not longer than min_seq_length={self.min_seq_length}, so {NAME} has "
                "nothing to cut: lower min_seq_length, or leave it out"
            )
        self._length(full, 0.0)

    def apply(self, event: Event, state: State, logger: Logger | None = None) -> None:
        """Replace the sequences of the batch with shorter ones."""
        keys = self._keys_in(state)
        _, full = lengths_of(state.batch, keys)
        length = self._length(full, state.get_progress(self.duration))
        if length < full:
            cut = truncated(state.batch, keys, length) if self.truncate else None
            state.batch = cut_up(state.batch, keys, length, state.batches) if cut is None else cut
        if logger is not None and logger.destinations:
            logger.log_metrics({f"{NAME}/length": length})

    def _keys_in(self, state: State) -> tuple[BatchKey, ...]:
        return guess_keys(state.objective, state.batch) if self.keys is None else self.keys

    def _length(self, full: int, done: float) -> int:
        """Return the length of the pieces of rows of so many tokens."""
        end = full if self.max_seq_length is None else self.max_seq_length
        length = min(full, length_at(done, end, self.min_seq_length, self.step_size))
        if self.truncate or length == full:
            return length
        return cut_length(length, full, self.min_seq_length, self.step_size)
