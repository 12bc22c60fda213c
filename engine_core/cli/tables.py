"""Plain tables for terminals and pipes."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["format_table"]


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]], below: Sequence[Sequence[str]]) -> str:
    """Return a table in columns.

    Args:
        below: for each row the lines that stand below it, indented.

    Example:
        >>> print(format_table(["NAME", "STATUS"], [["ema", "broken"], ["sam", "available"]], [["no disk"], []]))
        NAME  STATUS
        ema   broken
            no disk
        sam   available
    """
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = []
    for row, notes in zip([header, *rows], [(), *below], strict=True):
        lines.append("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        lines += [f"    {note}" for note in notes]
    return "\n".join(lines)
