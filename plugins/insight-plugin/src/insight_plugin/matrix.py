"""A confusion matrix as a picture and as JSON. Knows no run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape

import torch

from engine_core.messages import escaped

__all__ = ["MOST_DRAWN", "as_json", "as_svg"]

MOST_DRAWN = 25
"""How many classes a picture has at most."""

_CELL, _LETTER, _LONGEST = 30, 7, 16  # sizes of a cell and of a letter in pixels, letters of a name
_LIGHT, _DARK = (255, 255, 255), (8, 48, 107)  # a cell without rows, and one with all of its class


def as_json(counts: torch.Tensor, classes: Sequence[str], label: str) -> str:
    r"""Return the counts (K, K), a row for each class of the targets and a column for each prediction.

    Example:
        >>> as_json(torch.tensor([[2, 0], [1, 3]]), ["no", "yes"], "eval")
        '{"schema":1,"label":"eval","classes":["no","yes"],"rows":"targets","counts":[[2,0],[1,3]]}\n'
    """
    content = {"schema": 1, "label": label, "classes": [*classes], "rows": "targets", "counts": counts.tolist()}
    return json.dumps(content, separators=(",", ":")) + "\n"


def as_svg(counts: torch.Tensor, classes: Sequence[str], label: str) -> str:
    """Return a picture of the counts (K, K); of many classes, those with the most errors.

    A cell is the darker, the more of its class's rows are in it.

    Example:
        >>> as_svg(torch.tensor([[2, 0], [1, 3]]), ["no", "yes"], "eval").count("<rect")
        5
    """
    totals, drawn = counts.sum(1), _drawn(counts)
    names = [_short(classes[number]) for number in drawn]
    margin = 40 + _LETTER * max(map(len, names))
    size = margin + _CELL * len(drawn) + 12
    right, seen = int(counts.diagonal().sum()), int(counts.sum())
    share = f"{right:,} of {seen:,} right" + (f" ({right / seen:.1%})" if seen else "")
    some = f"; the {len(drawn)} of {len(classes)} classes with the most errors" if len(drawn) < len(classes) else ""
    title = escape(f"{_short(label)}: {share}{some}")
    width = max(size, 24 + _LETTER * len(title))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {size + 24}" width="{width}"'
    lines = [
        f'{head} height="{size + 24}" role="img" aria-labelledby="title"',
        '  font-family="system-ui, sans-serif" font-size="11" fill="#222222">',
        f'  <title id="title">Confusion matrix of {title}</title>',
        f'  <rect width="{width}" height="{size + 24}" fill="#ffffff"/>',
        f'  <text x="12" y="18" font-size="13">{title}</text>',
        f'  <text x="{margin}" y="36">predicted</text>',
        f'  <text x="12" y="{margin + 18}">target</text>',
    ]
    for place, name in enumerate(names):
        middle = margin + 24 + _CELL * place + _CELL // 2 + 4
        lines.append(f'  <text x="{margin - 6}" y="{middle}" text-anchor="end">{escape(name)}</text>')
        x = margin + _CELL * place + _CELL // 2 + 4
        lines.append(f'  <text transform="translate({x} {margin + 18}) rotate(-90)">{escape(name)}</text>')
    for row, target in enumerate(drawn):
        for column, predicted in enumerate(drawn):
            x, y = margin + _CELL * column, margin + 24 + _CELL * row
            lines += _cell(int(counts[target, predicted]), int(totals[target]), x, y)
    return "\n".join([*lines, "</svg>", ""])


def _cell(count: int, total: int, x: int, y: int) -> list[str]:
    share = count / total if total else 0.0
    colour = "".join(f"{round(light + share * (dark - light)):02x}" for light, dark in zip(_LIGHT, _DARK, strict=True))
    lines = [f'  <rect x="{x}" y="{y}" width="{_CELL}" height="{_CELL}" fill="#{colour}" stroke="#bbbbbb"/>']
    if count:
        text = str(count) if count < 10_000 else f"{count / 1000:.0f}k" if count < 1_000_000 else f"{count / 1e6:.0f}M"
        ink = ' fill="#ffffff"' if share > 0.6 else ""
        middle = f'x="{x + _CELL // 2}" y="{y + _CELL // 2 + 4}"'
        lines.append(f'  <text {middle} text-anchor="middle" font-size="10"{ink}>{text}</text>')
    return lines


def _drawn(counts: torch.Tensor) -> list[int]:
    """Return the classes of a picture in their order: all, or those that are mistaken most, either way."""
    if counts.shape[0] <= MOST_DRAWN:
        return list(range(counts.shape[0]))
    errors = counts.sum(0) + counts.sum(1) - 2 * counts.diagonal()
    worst: list[int] = errors.sort(descending=True, stable=True).indices[:MOST_DRAWN].sort().values.tolist()
    return worst


def _short(name: str) -> str:
    shown = escaped(name)
    return shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 1]}…"
