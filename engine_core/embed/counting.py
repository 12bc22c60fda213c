"""What the clock counts of a batch: rows and tokens; and whether anything has to stop where it can't."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ArgumentError, UncountedRowsWarning
from ..messages import enumerated, warn
from ..state import State
from ..time import Interval, Time, TimeUnit, is_length


class Counting:
    """Rows and tokens that were loaded since the latest step, for a loop that may know its own lengths.

    Attributes:
        samples, tokens: how many were loaded since the latest step.
        needs_rows: does the loop cut batches, so that their rows have to be known?
        lengths: of training, in the loop's own arguments, by name; those of State and of plugins are looked up.
    """

    state: State
    samples: int = 0
    tokens: int = 0
    needs_rows: bool = False
    lengths: Mapping[str, Any] = {}
    _counts_tokens: bool = False
    _in_rows: str = ""
    _in_tokens: str = ""
    _has_told: bool = False

    def _look_at_lengths(self) -> None:
        """Find out in which units lengths are, before the first batch of a fit."""
        self._in_rows, self._in_tokens = (self._lengths_in(unit) for unit in (TimeUnit.SAMPLE, TimeUnit.TOKEN))
        self._counts_tokens = bool(self._in_tokens) or self.state.batches.tokens is not None

    def _lengths_in(self, unit: TimeUnit) -> str:
        """Return the lengths of training in a unit, each with its name."""
        state = self.state
        found = {"max_duration": state.max_duration, **self.lengths}
        for plugin in (*state.algorithms, *state.callbacks):
            own = getattr(plugin, "__dict__", {})
            found |= {f"{type(plugin).__name__}'s {name.lstrip('_')}": value for name, value in own.items()}
        return enumerated([f"{name}={str(time)!r}" for name, time in _times(found) if time.unit is unit])

    def _pass_over(self, refusal: ArgumentError) -> None:
        """Go on without the rows of a batch, if nothing needs them; a warning says so, once in a run."""
        if self.needs_rows:
            raise refusal
        if self._in_rows:
            raise ArgumentError(f"{self._in_rows} is in rows, and {refusal}") from refusal
        if not self._has_told:
            self._has_told = True
            warn(
                "the rows of a batch can't be counted, so the clock counts no samples for it, and it counts 1 in each "
                f"mean over batches: {refusal}",
                UncountedRowsWarning,
            )

    def _tokens_of(self, batch: Any) -> int:
        """Return the tokens of a batch, 0 if nothing counts them; a device is waited for only if a length needs it."""
        mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
        if self.state.is_placeholder or not (self._counts_tokens or getattr(mask, "is_cpu", True)):
            return 0
        tokens = self.state.batches.count_tokens(batch)
        if tokens is None and self._in_tokens:
            raise ArgumentError(
                f"{self._in_tokens} is in tokens, and nothing counts those of a batch of type {type(batch).__name__}: "
                "say Batches(tokens=...), with a function that returns the number of tokens of a batch"
            )
        return tokens or 0


def _times(found: Mapping[str, Any]) -> list[tuple[str, Time]]:
    """Return the lengths among some values."""
    values = {name: value.length if isinstance(value, Interval) else value for name, value in found.items()}
    times = list[tuple[str, Time]]()
    for name, value in values.items():
        try:
            times += [(name, Time(value))] if is_length(value) else []
        except ArgumentError:  # nearly a length, and not meant as one
            continue
    return times
