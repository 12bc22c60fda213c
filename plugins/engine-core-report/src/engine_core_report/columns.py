"""Runs beside each other as columns of text: those of a table, the most telling first, and those of a CSV file."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from engine_core.messages import escaped

from .ranking import RankedRun, Value
from .wording import cell, setting

_FIRST = 2
"""How many values stand before the settings, unless one ranks."""
COMMAND = "command"
"""The setting that is shown last: what it changes is among the others."""
Columns = tuple[str, list[str], list[list[str]]]
"""A title, a label for each column below it, and for each run a cell of each column."""


def columns_of(rows: Sequence[RankedRun], by: str | None = None) -> Iterator[Columns]:
    """Yield the columns of a table in the order in which they are worth their width.

    Args:
        rows: at least one.
        by: the value that they are ranked by.
    """
    has_best = {name: any(row.values[name].best is not None for row in rows) for name in rows[0].values}
    names = sorted(has_best, key=lambda name: (name != by, not has_best[name]))  # evaluation results come first
    first = max(1, sum(has_best[name] for name in names[:_FIRST])) if by is None else 1
    values = [_of_value(name, [row.values[name] for row in rows], has_best=has_best[name]) for name in names]
    settings = [(key, [""], [[setting(row.settings[key])] for row in rows]) for key in rows[0].settings]
    yield "run", [""], [[row.run] for row in rows]
    yield "status", [""], [[row.status] for row in rows]
    yield from values[:first]
    yield from (columns for columns in settings if columns[0] != COMMAND)
    yield from values[first:]
    yield from (columns for columns in settings if columns[0] == COMMAND)


def _of_value(name: str, values: Sequence[Value], *, has_best: bool) -> Columns:
    last = ["NaN" if value.is_nan else cell(value.last).text for value in values]
    if not has_best:
        return name, [""], [[text] for text in last]
    best = [cell(None if value.best is None else value.best["value"]).text for value in values]
    return name, ["best", "last"], [list(pair) for pair in zip(best, last, strict=True)]


def to_csv(rows: Sequence[RankedRun]) -> str:
    """Return runs as CSV with all digits: `run`, `status`, the best and the last of each value, then what differs.

    What is missing is empty, and what is not finite is `nan`. What is not printable is escaped.

    Args:
        rows: at least one.
    """
    values = chain.from_iterable((f"{name} best", f"{name} last") for name in rows[0].values)
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(escaped(title) for title in ("run", "status", *values, *rows[0].settings))
    for row in rows:
        pairs = ((None if value.best is None else value.best["value"], value.last) for value in row.values.values())
        cells = (row.run, row.status, *chain.from_iterable(pairs), *row.settings.values())
        writer.writerow(_exact(content) for content in cells)
    return written.getvalue()


def _exact(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return repr(value)
    return escaped(value) if isinstance(value, str) else json.dumps(value)
