"""Where progress is shown: a terminal with a bar that stays below what is printed, or plain lines. Knows no run."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar as Stroke
from rich.table import Table
from rich.text import Text

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


class Screen(Protocol):
    """What lines and progress are shown on."""

    every_s: float
    """The shortest time between two calls of `draw`."""

    def print(self, lines: Sequence[str]) -> None:
        """Add lines that stay."""

    def draw(self, progress: Progress) -> None:
        """Show how far something is, in place of what was drawn before if that is possible."""

    def close(self) -> None:
        """Stop drawing, and leave the last drawing."""


class Plain:
    """Plain lines on stderr. What can't be written, as when a pipe's reader is gone, is dropped: training matters more.

    Neither colours nor control characters are written, whatever the environment asks for.
    """

    every_s = LINES_EVERY_S

    def print(self, lines: Sequence[str]) -> None:
        """Write the lines at once."""
        if sys.stderr is not None:
            with contextlib.suppress(OSError):
                sys.stderr.write("".join(f"{line}\n" for line in lines))
                sys.stderr.flush()

    def draw(self, progress: Progress) -> None:
        """Write a line."""
        self.print([str(progress)])

    def close(self) -> None:
        """Nothing is drawn, so nothing has to stop."""


class Terminal:
    """A terminal on stderr, with a bar below what is printed. What a lost terminal would not take is dropped."""

    def __init__(self, every_s: float) -> None:
        self.every_s = every_s
        self._console = Console(stderr=True)
        self._live: Live | None = None

    def print(self, lines: Sequence[str]) -> None:
        """Print the lines above the bar, wrapped where they are too long."""
        with contextlib.suppress(OSError):
            for line in lines:
                text = Text(line)
                text.highlight_regex(r"^.+?(?=  )", "bold")
                text.highlight_regex(r"\S+\*(?=  )", "green")
                self._console.print(text)

    def draw(self, progress: Progress) -> None:
        """Draw the bar."""
        with contextlib.suppress(OSError):
            if self._live is None:
                # What the run prints appears above the bar, unless it goes to a file or a pipe.
                prints_here = sys.stdout is not None and sys.stdout.isatty()
                self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=prints_here)
                self._live.start()
            self._live.update(progress, refresh=True)

    def close(self) -> None:
        """Leave the terminal as it was, with the cursor below the bar."""
        live, self._live = self._live, None
        if live is not None:
            with contextlib.suppress(OSError):
                live.stop()


def is_terminal() -> bool:
    """Is stderr a terminal on which a bar can be drawn?"""
    shown = sys.stderr is not None and sys.stderr.isatty()  # None without a console, as under pythonw
    return shown and os.environ.get("TERM") not in ("dumb", "unknown")
