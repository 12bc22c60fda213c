"""Runs as a table for terminals and pipes: the columns that fit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from engine_core.messages import aligned, columns_of, escaped


def format_groups(
    groups: Iterable[tuple[str, Sequence[str], Sequence[Sequence[str]]]], width: int, always: int = 1
) -> tuple[str, list[str]]:
    """Return a table of the groups of columns that fit, and the titles of those that don't.

    Args:
        groups: a title, a label for each column, and the cells of each row.
        always: how many of the groups are there in any case.

    Example:
        >>> loss = "eval/loss", ["best", "last"], [["0.25", "0.5"], ["0.125", "0.25"]]
        >>> table, left_out = format_groups([("run", [""], [["a"], ["b"]]), loss, ("lr", [""], [["0.1"], ["0.2"]])], 22)
        >>> print(table)
             eval/loss
        run  best       last
        a    0.25       0.5
        b    0.125      0.25
        >>> left_out
        ['lr']
    """
    shown: list[list[str]] = []
    left_out, used = [], 0
    for place, (title, labels, rows) in enumerate(groups):
        heads = [("" if n else title, label) for n, label in enumerate(labels)] if any(labels) else [_halves(title)]
        columns = [[shortened(cell) for cell in (*head, *cells)] for head, *cells in zip(heads, *rows, strict=True)]
        wide = sum(2 + max(map(columns_of, column)) for column in columns)
        if place < always or used + wide - 2 <= width:
            shown += columns
            used += wide
        else:
            left_out.append(title)
    lines = aligned(zip(*shown, strict=True))
    return "\n".join(lines[not lines[0] :]), left_out


def _halves(title: str) -> tuple[str, str]:
    """Return a title in two parts, the second behind the last point or slash."""
    end = max(title.rfind("."), title.rfind("/")) + 1
    return title[:end], title[end:]


def shortened(text: str, longest: int = 30) -> str:
    """Return foreign text as it is, or begin and end of it, since names often differ at the end.

    Example:
        >>> shortened("first" + "-" * 100 + "last", 12)
        'first...last'
    """
    text, half = escaped(text), (longest - 3) // 2
    return text if len(text) <= longest else f"{text[: longest - 3 - half]}...{text[-half:]}"
