"""A table that fits the terminal: columns in groups, as many as there is room for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from rich.cells import cell_len

from ..messages import escaped

_WIDEST = 30  # characters of a cell
_GAP = "  "
_ENDS_OF_WORDS = re.compile(r"(?<=[/. ])|(?=\[)")


class Group(NamedTuple):
    """Columns that share a title.

    Args:
        labels: what is below the title, one for each column; empty where the title says all.
        rows: the cells of each row, one for each column.
    """

    title: str
    labels: Sequence[str]
    rows: Sequence[Sequence[str]]


def format_groups(groups: Sequence[Group], width: int, always: int = 1) -> tuple[str, list[str]]:
    """Return a table of the groups that fit, and the titles of those that don't. The first ones `always` are there.

    A title is broken between its words, cells are shortened in the middle, and what is not printable is escaped.

    Example:
        >>> run = Group("run", [""], [["a"], ["b"]])
        >>> loss = Group("eval/loss", ["best", "last"], [["0.25", "0.5"], ["0.125", "0.25"]])
        >>> table, left_out = format_groups([run, loss, Group("optimizer.args.lr", [""], [["0.1"], ["0.2"]])], 20)
        >>> print(table)
             eval/loss
        run  best   last
        a    0.25   0.5
        b    0.125  0.25
        >>> left_out
        ['optimizer.args.lr']
    """
    shown: list[tuple[list[str], list[str]]] = []
    left_out, used = [], 0
    for place, group in enumerate(groups):
        head, body = _laid_out(group)
        wide = cell_len(head[0]) + (len(_GAP) if shown else 0)
        if place < always or used + wide <= width:
            shown.append((head, body))
            used += wide
        else:
            left_out.append(group.title)
    height = max(len(head) for head, _ in shown)
    blocks = [[" " * cell_len(head[0])] * (height - len(head)) + head + body for head, body in shown]
    return "\n".join(_GAP.join(line).rstrip() for line in zip(*blocks, strict=True)), left_out


def _laid_out(group: Group) -> tuple[list[str], list[str]]:
    """Return the lines of a group's title and of its rows, all of one width."""
    labels = [group.labels] if any(group.labels) else []
    rows = [[shortened(cell) for cell in row] for row in (*labels, *group.rows)]
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    lines = [_GAP.join(map(_padded, row, widths)) for row in rows]
    words = [shortened(word) for word in _ENDS_OF_WORDS.split(group.title)]
    width = max(sum(widths) + len(_GAP) * (len(widths) - 1), *map(cell_len, words))
    title = [""]
    for word in words:
        if title[-1] and cell_len(title[-1] + word) > width:
            title.append(word)
        else:
            title[-1] += word
    found = [_padded(line, width) for line in (*title, *lines)]
    place = len(title) + len(labels)
    return found[:place], found[place:]


def _padded(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))


def shortened(text: str, longest: int = _WIDEST) -> str:
    """Return foreign text as it is, or begin and end of it, since names often differ at the end.

    Example:
        >>> shortened("first" + "-" * 100 + "last", 12)
        'first...last'
    """
    text = escaped(text)
    if cell_len(text) <= longest:
        return text
    half, characters = (longest - 3) // 2, list(text)
    begin, end = list[str](), list[str]()
    while cell_len("".join([*begin, characters[0]])) <= half + (longest - 3) % 2:
        begin.append(characters.pop(0))
    while cell_len("".join([*end, characters[-1]])) <= half:
        end.append(characters.pop())
    return f"{''.join(begin)}...{''.join(reversed(end))}"
