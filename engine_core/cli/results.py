"""The final table of `engine-core train`: results, algorithms and time."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..callbacks.wording import clock
from ..messages import counted, escaped

if TYPE_CHECKING:
    from ..run import RunResults

Rows = list[tuple[str, ...]]


def show_results(results: RunResults) -> None:
    """Print a run's results: a table on a terminal, plain lines elsewhere."""
    if sys.stdout is not None and sys.stdout.isatty():
        Console().print(_table(sections_of(results)))
    else:
        click.echo("\n".join(result_lines(results)))


def result_lines(results: RunResults) -> list[str]:
    """Return a run's results as plain lines."""
    return [line for title, rows in sections_of(results).items() for line in _lines(title, rows)]


def sections_of(results: RunResults) -> dict[str, Rows]:
    """Return the rows of each section; the first of a row's cells is its name."""
    bests = results.best
    averaged = [] if results.weights == "trained" else [("weights evaluated", results.weights)]
    done = [
        counted(results.epochs, "epoch", "epochs"),
        counted(results.batches, "batch", "batches"),
        counted(results.samples, "sample", "samples"),
    ]
    return {
        "results": [
            *((name, _number(v), *_best(bests.get(name))) for name, v in sorted(results.metrics.items())),
            *averaged,
        ],
        "algorithms": _runs(results.algorithms),
        "time": [
            ("trained", ", ".join(done)),
            ("time", f"{results.seconds:.1f} s" if results.seconds < 60 else clock(results.seconds)),
            ("samples/s", f"{results.samples_per_second:,.0f}"),
        ],
    }


def _best(best: Mapping[str, Any] | None) -> tuple[str, ...]:
    if best is None:
        return ()
    return f"best {_number(best['value'])}", f"epoch {best['epoch']:,}, batch {best['step']:,}"


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _runs(counts: Mapping[str, int]) -> Rows:
    """Return each algorithm's number of events and of runs, from its runs at each event."""
    runs, events = Counter[str](), Counter[str]()
    for key, count in counts.items():
        name, _, event = key.partition("/")
        runs[name] += count
        events[name] += bool(event)
    return [(name, counted(events[name], "event", "events"), f"{count}x") for name, count in runs.items()]


def _table(sections: Mapping[str, Rows]) -> Table:
    """Return one column with the lines of each section, since shared columns would fold each other's cells."""
    table = Table("what", show_header=False)
    for title, rows in sections.items():
        for line in _lines(title, rows):
            table.add_row(Text(line, style="bold" if line == title else "", overflow="fold"))
        table.add_section()
    return table


def _lines(title: str, rows: Rows) -> list[str]:
    """Return a section's title, and below it its rows in columns that are as wide as it needs."""
    cells = [[escaped(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in cells if len(row) > i) for i in range(max(map(len, cells), default=0))]
    return [title, *("  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in cells)] if rows else []
