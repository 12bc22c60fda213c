"""Show training progress on a terminal, drawn at most ten times a second; other steps only read a clock."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from ..callback import Callback
from ..errors import ArgumentError
from ..logger import Logger
from ..state import State, length_of
from ..time import TimeUnit

__all__ = ["ProgressBar"]


class ProgressBar(Callback):
    """A bar with epoch, loss, samples per second and the time left, on stderr; silent if that is not a terminal.

    Args:
        refresh_s: the shortest time between two redraws, in seconds.

    Example:
        >>> ProgressBar(refresh_s=0.5).refresh_s
        0.5
    """

    def __init__(self, refresh_s: float = 0.1) -> None:
        if not refresh_s >= 0:
            raise ArgumentError(f"refresh_s is the time between two drawings in seconds, not {refresh_s!r}")
        self.refresh_s = refresh_s
        self._bar: Progress | None = None
        self._next_s = float("inf")

    def fit_start(self, state: State, logger: Logger) -> None:
        """Put the bar on the terminal."""
        self.close()
        if state.rank or not _is_terminal():
            return
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[numbers]}"),
            console=Console(stderr=True),
            auto_refresh=False,
        )
        self._task = self._bar.add_task("", total=1.0, numbers="")
        self._started_s = time.monotonic()
        self._first, self._first_done = state.timestamp, _done(state) or 0.0
        self._numbers = ""
        self._bar.start()
        self._draw(state)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Draw if it is time to."""
        if time.monotonic() >= self._next_s:
            self._draw(state)

    def eval_batch_end(self, state: State, logger: Logger) -> None:
        """Draw if it is time to."""
        if time.monotonic() >= self._next_s:
            batches = f"{state.eval_timestamp.batch}/{length_of(state.dataloader) or '?'}"
            self._show(f"evaluating {state.dataloader_label} {batches}", state)

    def fit_end(self, state: State, logger: Logger) -> None:
        """Draw the final state and leave the terminal."""
        if self._bar is not None:
            self._draw(state)
        self.close()

    def close(self, state: State | None = None, logger: Logger | None = None) -> None:
        """Leave the terminal as it was."""
        bar, self._bar, self._next_s = self._bar, None, float("inf")
        if bar is not None:
            bar.stop()

    def _draw(self, state: State) -> None:
        numbers = (_loss(state), self._rate(state), self._left(_done(state)))
        self._numbers = "  ".join(filter(None, numbers))
        self._show(_position(state), state)

    def _show(self, description: str, state: State) -> None:
        bar: Any = self._bar
        bar.update(self._task, description=description, completed=_done(state) or 0.0, numbers=self._numbers)
        bar.refresh()
        self._next_s = time.monotonic() + self.refresh_s

    def _rate(self, state: State) -> str:
        now, first = state.timestamp, self._first
        seconds = now.elapsed_s - first.elapsed_s
        return f"{(now.sample - first.sample) / seconds:.0f} samples/s" if seconds > 0 else ""

    def _left(self, done: float | None) -> str:
        """Estimate the time left from the pace of this fit so far, evaluation included."""
        if done is None or not self._first_done < done < 1:
            return ""
        left_s = (time.monotonic() - self._started_s) * max(0.0, 1 - done) / (done - self._first_done)
        return f"{_clock(left_s)} left"


def _is_terminal() -> bool:
    shown = sys.stderr is not None and sys.stderr.isatty()  # None without a console, as under pythonw
    return shown and os.environ.get("TERM") not in ("dumb", "unknown")


def _done(state: State) -> float | None:
    elapsed = state.get_elapsed_duration()
    return None if elapsed is None else min(1.0, elapsed.value)


def _loss(state: State) -> str:
    return "" if getattr(state.loss, "numel", lambda: 0)() != 1 else f"loss {state.loss.item():.4g}"


def _position(state: State) -> str:
    now, end = state.timestamp, state.max_duration
    unit = getattr(end, "unit", None)
    if unit is TimeUnit.EPOCH:
        return f"epoch {min(now.epoch + 1, end.value)}/{end.value}"  # type: ignore[union-attr]
    if unit is TimeUnit.BATCH:
        return f"batch {now.batch}/{end.value}"  # type: ignore[union-attr]
    return f"epoch {now.epoch} batch {now.batch}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
