"""Plain tables for terminals and pipes."""

from __future__ import annotations

from collections.abc import Sequence

from ..messages import readable

_WIDEST, _LONGEST = 100, 3000  # characters of a cell, and of a line below


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]], below: Sequence[Sequence[str]]) -> str:
    """Return a table in columns, each row followed by its lines of `below`, indented.

    What is not printable is escaped, since plugins choose names.

    Example:
        >>> print(format_table(["NAME", "STATUS"], [["pad", "broken"], ["tilt", "available"]], [["no disk"], []]))
        NAME  STATUS
        pad   broken
            no disk
        tilt  available
    """
    rows = [[readable(cell, _WIDEST) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = []
    for row, notes in zip([header, *rows], [(), *below], strict=True):
        lines.append("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        lines += [f"    {readable(note, _LONGEST)}" for note in notes]
    return "\n".join(lines)
