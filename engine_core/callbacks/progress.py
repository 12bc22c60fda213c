"""Show on stderr what a run is, how its evaluations went, and how far it is: a bar on a terminal, or plain lines."""

from __future__ import annotations

import sys
import time
from typing import Any, Literal

from ..errors import ArgumentError
from ..logger import Logger
from ..messages import escaped
from ..state import State, epochs_done, length_of
from ..time import TimeUnit
from .facts import Facts, totals_of
from .screen import Plain, Progress, Screen, Terminal, is_terminal
from .wording import clock, header_lines, row

__all__ = ["ProgressBar"]


class ProgressBar(Facts):
    """Shows header, evaluations and progress on stderr: with a bar on a terminal, as plain lines elsewhere.

    Args:
        refresh_s: the shortest time between two drawings of the bar, in seconds.
        show: `auto`: on a terminal only; `lines`: plain lines, on a terminal too; True: a bar on a terminal, and
            lines elsewhere.

    Example:
        >>> ProgressBar(refresh_s=0.5).refresh_s
        0.5
    """

    def __init__(self, refresh_s: float = 0.1, *, show: bool | Literal["auto", "lines"] = "auto") -> None:
        super().__init__()
        if not refresh_s >= 0:
            raise ArgumentError(f"refresh_s is the time between two drawings in seconds, not {refresh_s!r}")
        if show is not True and show not in ("auto", "lines"):
            raise ArgumentError(f"show is 'auto', 'lines' or True, not {show!r}")
        self.refresh_s, self.show = refresh_s, show
        self._screen: Screen | None = None
        self._next_s = float("inf")

    def fit_start(self, state: State, logger: Logger) -> None:
        """Show the header, and put the bar on the terminal."""
        self._open(state)
        super().fit_start(state, logger)
        self._started_fit_s = time.monotonic()
        self._first, self._first_done = state.timestamp, _done(state) or 0.0
        self._redraw(state)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Show how far training is, if it is time to."""
        Facts.batch_end(self, state, logger)
        if time.monotonic() >= self._next_s:
            self._draw(self._of_training(state))

    def eval_start(self, state: State, logger: Logger) -> None:
        """Open the screen for an evaluation of its own; a prediction is not followed, since it may be left midway."""
        if not self.is_fitting and state.dataloader_label != "predict":
            self._open(state)

    def eval_batch_end(self, state: State, logger: Logger) -> None:
        """Show how far the evaluation is, if it is time to."""
        if time.monotonic() >= self._next_s:
            self._draw(_of_evaluation(state))

    def eval_end(self, state: State, logger: Logger) -> None:
        """Show the row, and training below it."""
        super().eval_end(state, logger)
        if self.is_fitting:
            self._redraw(state)
        else:
            self.close()

    def fit_end(self, state: State, logger: Logger) -> None:
        """Show the final state and leave the terminal."""
        super().fit_end(state, logger)
        self._redraw(state)
        self.close()

    def close(self, state: State | None = None, logger: Logger | None = None) -> None:
        """Leave the terminal as it was."""
        screen, self._screen, self._next_s = self._screen, None, float("inf")
        if screen is not None:
            screen.close()

    def tell(self, fact: dict[str, Any], state: State) -> None:
        """Show the header, or the row of an evaluation."""
        screen = self._screen or self._find_screen()
        if screen is not None:
            is_row = fact["kind"] == "evaluation"
            screen.print([row(fact, _position(state))] if is_row else header_lines(fact))

    def _open(self, state: State) -> None:
        self.close()
        self._screen = self._find_screen()
        if self._screen is not None:
            self._next_s = time.monotonic() + self._screen.every_s

    def _find_screen(self) -> Screen | None:
        if sys.stderr is None:
            return None
        if is_terminal() and self.show != "lines":
            return Terminal(self.refresh_s)
        return None if self.show == "auto" and not sys.stderr.isatty() else Plain()

    def _draw(self, progress: Progress) -> None:
        if self._screen is not None:
            self._screen.draw(progress)
            self._next_s = time.monotonic() + self._screen.every_s

    def _redraw(self, state: State) -> None:
        """Let a bar show training at once; lines wait for their time."""
        if isinstance(self._screen, Terminal):
            self._draw(self._of_training(state))

    def _of_training(self, state: State) -> Progress:
        done, loss = _done(state), self.loss.smoothed
        said = "" if loss is None else f"loss {loss:.4g}"
        return Progress(_place(state), done, "  ".join(filter(None, (said, self._rate(state), self._left(done)))))

    def _rate(self, state: State) -> str:
        now, first = state.timestamp, self._first
        seconds = now.elapsed_s - first.elapsed_s
        return f"{(now.sample - first.sample) / seconds:,.0f} samples/s" if seconds > 0 else ""

    def _left(self, done: float | None) -> str:
        """Estimate the time left from the pace of this fit so far, evaluation included."""
        if done is None or not self._first_done < done < 1:
            return ""
        left_s = (time.monotonic() - self._started_fit_s) * max(0.0, 1 - done) / (done - self._first_done)
        return f"{clock(left_s)} left"


def _of_evaluation(state: State) -> Progress:
    done, length = state.eval_timestamp.batch, length_of(state.dataloader)
    what = f"evaluating {escaped(state.dataloader_label or '')} {done}/{length or '?'}"
    return Progress(what, min(1.0, done / length) if length else None)


def _done(state: State) -> float | None:
    elapsed = state.get_elapsed_duration()
    return None if elapsed is None else min(1.0, elapsed.value)


def _place(state: State) -> str:
    """Return where training is: the epoch that runs, or the batches that are complete."""
    now, (epochs, batches) = state.timestamp, totals_of(state)
    if epochs is not None and getattr(state.max_duration, "unit", None) is TimeUnit.EPOCH:
        return f"epoch {min(now.epoch + 1, epochs)}/{epochs}"
    return f"batch {now.batch}/{batches or '?'}"


def _position(state: State) -> str:
    """Return where an evaluation was made: after an epoch, or else after so many batches."""
    now, done, (epochs, batches) = state.timestamp, epochs_done(state), totals_of(state)
    if done and (done > now.epoch or not now.batch_in_epoch):
        return f"epoch {done}/{epochs or '?'}"
    return f"batch {now.batch}/{batches or '?'}"
