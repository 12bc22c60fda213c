"""Plugins as a table for terminals and pipes."""

from __future__ import annotations

from collections.abc import Sequence

import click

from ..messages import aligned, readable
from ..registry import Registry

_WIDEST, _LONGEST = 100, 3000  # characters of a cell, and of a line below


def warn_of_doubts(registry: Registry) -> None:
    """Show what can't be read of what is installed, and what is doubtful in the environment's lists."""
    for doubt in (*registry.findings, *registry.doubts):
        click.echo(f"warning: {readable(doubt, _LONGEST)}", err=True)


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]], below: Sequence[Sequence[str]]) -> str:
    """Return a table in columns, each row followed by its lines of `below`, indented.

    Example:
        >>> print(format_table(["NAME", "STATUS"], [["pad", "broken"], ["tilt", "available"]], [["no disk"], []]))
        NAME  STATUS
        pad   broken
            no disk
        tilt  available
    """
    lines = aligned([header, *([readable(cell, _WIDEST) for cell in row] for row in rows)])
    notes = [[f"    {readable(note, _LONGEST)}" for note in each] for each in below]
    return "\n".join(line for row, each in zip(lines, [[], *notes], strict=True) for line in (row, *each))
