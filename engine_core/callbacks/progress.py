"""Show on stderr what a run is, how its evaluations went, and how far it is: a bar on a terminal, or plain lines."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar as Stroke
from rich.table import Table
from rich.text import Text

from ..errors import ArgumentError
from ..logger import Logger
from ..messages import escaped
from ..state import State, epochs_done, length_of
from ..time import TimeUnit
from .reporter import RunReporter, clock, header_lines, row, totals_of

__all__ = ["ProgressBar"]

NARROWEST, WIDEST = 10, 40
"""How many columns a bar takes; where there is less room, its numbers are shown without it."""

LINES_EVERY_S = 30.0
"""The shortest time between two lines of progress."""


class Progress(NamedTuple):
    """How far something is: what, which share of it is done, and what else there is to say."""

    what: str
    share: float | None
    numbers: str = ""

    def __str__(self) -> str:
        percent = "" if self.share is None else f"{self.share:.0%}"
        return "  ".join(filter(None, (self.what, percent, self.numbers)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield one line with a bar, or the text alone, wrapped, where the width leaves no room for the bar."""
        room = options.max_width - cell_len(str(self)) - 2  # in steps, or the bar would move with each digit
        if self.share is None or room < NARROWEST:
            yield Text(str(self), overflow="fold")
            return
        line = Table.grid(padding=(0, 2, 0, 0))
        stroke = Stroke(total=1.0, completed=self.share, width=min(room // 10 * 10, WIDEST))
        line.add_row(Text(self.what), stroke, Text(f"{self.share:.0%}"), Text(self.numbers))
        yield line


class ProgressBar(RunReporter):
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
        if show is not True and show not in ("auto", "lines"):
            raise ArgumentError(f"show is 'auto', 'lines' or True, not {show!r}")
        self.refresh_s, self.show = refresh_s, show
        self._form: Literal["bar", "lines"] | None = None
        self._live: Live | None = None
        self._next_s, self._state = float("inf"), State()

    def fit_start(self, state: State, logger: Logger) -> None:
        """Show the header, and put the bar on the terminal."""
        self._state = state
        self._open()
        super().fit_start(state, logger)
        self._started_fit_s = time.monotonic()
        self._first, self._first_done = state.timestamp, _done(state) or 0.0
        self._redraw(state)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Show how far training is, if it is time to."""
        super().batch_end(state, logger)
        if time.monotonic() >= self._next_s:
            self._draw(self._of_training(state))

    def eval_start(self, state: State, logger: Logger) -> None:
        """Open the screen for an evaluation of its own; a prediction is not followed, since it may be left midway."""
        if not self.is_fitting and state.dataloader_label != "predict":
            self._open()

    def eval_batch_end(self, state: State, logger: Logger) -> None:
        """Show how far the evaluation is, if it is time to."""
        if time.monotonic() >= self._next_s:
            self._draw(_of_evaluation(state))

    def eval_end(self, state: State, logger: Logger) -> None:
        """Show the row, and training below it."""
        self._state = state
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
        """Leave the terminal as it was, with the cursor below the bar."""
        live, self._live, self._form, self._next_s = self._live, None, None, float("inf")
        if live is not None:
            with contextlib.suppress(OSError):
                live.stop()

    def emit(self, event: dict[str, Any]) -> None:
        """Show the header, or the row of an evaluation."""
        lines = [row(event, _position(self._state))] if event["kind"] == "evaluation" else header_lines(event)
        form = self._form or self._find_form()
        with contextlib.suppress(OSError):
            if form == "bar":
                console = self._live.console if self._live else Console(stderr=True)
                for text in map(Text, lines):  # above the bar, wrapped where they are too long
                    text.highlight_regex(r"^.+?(?=  )", "bold")
                    text.highlight_regex(r"\S+\*(?=  )", "green")
                    console.print(text)
            elif form == "lines":
                _write(lines)

    def _open(self) -> None:
        self.close()
        self._form = self._find_form()
        if self._form is not None:
            self._next_s = time.monotonic() + self._every_s

    @property
    def _every_s(self) -> float:
        return self.refresh_s if self._form == "bar" else LINES_EVERY_S

    def _find_form(self) -> Literal["bar", "lines"] | None:
        if sys.stderr is None:  # without a console, as under pythonw
            return None
        is_terminal = sys.stderr.isatty()
        if is_terminal and os.environ.get("TERM") not in ("dumb", "unknown") and self.show != "lines":
            return "bar"
        return None if self.show == "auto" and not is_terminal else "lines"

    def _draw(self, progress: Progress) -> None:
        """Show how far something is: in place of what was drawn before, or as a line."""
        with contextlib.suppress(OSError):  # what a lost terminal, or a reader that is gone, would not take
            if self._form == "lines":
                _write([str(progress)])
            elif self._form == "bar":
                if self._live is None:
                    # What the run prints appears above the bar, unless it goes to a file or a pipe.
                    prints_here = sys.stdout is not None and sys.stdout.isatty()
                    console = Console(stderr=True)
                    self._live = Live(console=console, auto_refresh=False, redirect_stdout=prints_here)
                    self._live.start()
                self._live.update(progress, refresh=True)
        self._next_s = time.monotonic() + self._every_s

    def _redraw(self, state: State) -> None:
        """Let a bar show training at once; lines wait for their time."""
        if self._form == "bar":
            self._draw(self._of_training(state))

    def _of_training(self, state: State) -> Progress:
        done, loss, now, first = _done(state), self.loss.smoothed, state.timestamp, self._first
        seconds = now.elapsed_s - first.elapsed_s
        numbers = (
            "" if loss is None else f"loss {loss:.4g}",
            f"{(now.sample - first.sample) / seconds:,.0f} samples/s" if seconds > 0 else "",
            self._left(done),
        )
        return Progress(_place(state), done, "  ".join(filter(None, numbers)))

    def _left(self, done: float | None) -> str:
        """Estimate the time left from the pace of this fit so far, evaluation included."""
        if done is None or not self._first_done < done < 1:
            return ""
        left_s = (time.monotonic() - self._started_fit_s) * max(0.0, 1 - done) / (done - self._first_done)
        return f"{clock(left_s)} left"


def _write(lines: Sequence[str]) -> None:
    """Write plain lines at once, without colours, whatever the environment asks for."""
    sys.stderr.write("".join(f"{line}\n" for line in lines))
    sys.stderr.flush()


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
