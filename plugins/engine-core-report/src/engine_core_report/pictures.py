"""The order of the algorithms as a Mermaid flowchart of all events, or as an SVG of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

from engine_core.errors import ArgumentError
from engine_core.explain import Explanation, changes_in
from engine_core.passes import FILO, Derivation, Explained

from .diff import who_moved

__all__ = ["to_mermaid", "to_svg"]

COLOURS = ("#cfe3f7", "#f9d9c2", "#d5ecd4", "#e6dbf4", "#f7eebb", "#d9e8e8", "#f5d5df", "#e3e3e3")
DARK = 'fill="#222222"'
ROW, HEIGHT, TOP, CHARACTER = 60, 34, 68, 8.4


def to_mermaid(orders: Mapping[str, Sequence[Explained]]) -> str:
    """Return a Mermaid flowchart: a box for each event, in it the algorithms in running order, on the arrows why.

    Example:
        >>> print(to_mermaid({"init": [Explained("Flip", "flip", "runs alone")]}))
        flowchart TB
          subgraph e1["init"]
            e1a1["1. Flip"]
          end
    """
    lines = ["flowchart TB"]
    for number, (event, order) in enumerate(orders.items(), start=1):
        lines.append(f'  subgraph e{number}["{_quoted(event)}"]')
        for place, explained in enumerate(order, start=1):
            origin = f"<br/>{_quoted(str(explained.origin))}" if explained.origin else ""
            lines.append(f'    e{number}a{place}["{place}. {_quoted(explained.algorithm)}{origin}"]')
        for place, explained in enumerate(order[1:], start=1):
            reason = explained.why.partition(": ")[2]
            lines.append(f'    e{number}a{place} -->|"{_quoted(reason)}"| e{number}a{place + 1}')
        lines.append("  end")
    return "\n".join(lines)


def to_svg(explanation: Explanation, event: str) -> str:
    """Return an SVG of how the order at an event comes about: the user's list, then what each pass made of it.

    Passes that left the list as it was are not shown; algorithms that a pass moved or added are red.
    """
    if event not in explanation.derivations:
        raise ArgumentError(
            f"there is no order at {event!r}, only at: {', '.join(explanation.derivations) or 'no event'}"
        )
    derivation = explanation.derivations[event]
    rows = _rows(derivation)
    names = list(dict.fromkeys(name for _, _, order, _ in rows for name in order))
    colours = {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(names)}
    widths = {name: round(len(name) * CHARACTER) + 28 for name in names}
    left = round(max(len(text) for label, origin, *_ in rows for text in (label, origin)) * CHARACTER) + 48
    width = left + max(sum(widths[name] + 12 for name in order) for _, _, order, _ in rows) + 12
    height = TOP + ROW * len(rows) - 2
    words = ", then ".join(f"{label} gives {', '.join(order) or 'nothing'}" for label, _, order, _ in rows) + "."
    lines = _frame(width, height, f"How the order at {event} comes about", words[0].upper() + words[1:])
    lines.append(
        f'  <text x="24" y="34" font-size="16" font-weight="600" {DARK}>Running order at {escape(event)}</text>'
    )
    for number, (label, origin, order, moved) in enumerate(rows):
        y = TOP + ROW * number
        lines.append(f'  <text x="24" y="{y + 14}" font-weight="600" {DARK}>{escape(label)}</text>')
        lines.append(f'  <text x="24" y="{y + 31}" font-size="12" fill="#666666">{escape(origin)}</text>')
        x = left
        for name in order:
            border = 'stroke="#c0392b" stroke-width="2"' if name in moved else 'stroke="#999999"'
            box = f'x="{x}" y="{y}" width="{widths[name]}" height="{HEIGHT}" rx="6"'
            text = f'x="{x + widths[name] // 2}" y="{y + 22}" text-anchor="middle" {DARK}'
            lines.append(f'  <rect {box} fill="{colours[name]}" {border}/><text {text}>{escape(name)}</text>')
            x += widths[name] + 12
    return "\n".join([*lines, "</svg>", ""])


def _frame(width: int, height: int, title: str, description: str) -> list[str]:
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    font = 'font-family="system-ui, sans-serif" font-size="14"'
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title description" {font}>',
        f'  <title id="title">{escape(title)}</title>',
        f'  <desc id="description">{escape(description)}</desc>',
        f'  <rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>',
    ]


def _rows(derivation: Derivation) -> list[tuple[str, str, tuple[str, ...], set[str]]]:
    """Return a label, where it comes from, the order, and what moved, for the list and each pass that changed it."""
    rows = [("your list", "as you wrote it", derivation.given, set[str]())]
    for place, before, order in changes_in(derivation):
        record, moved = derivation.passes[place], set[str]()
        if not record.is_core(FILO):  # which moves all but one
            moved = {*who_moved(before, order), *(name for name in order if name not in before)}
        rows.append((record.name, record.distribution or "your own", order, moved))
    return rows


def _quoted(text: str) -> str:
    """Escape a text for use between Mermaid's quotes."""
    for character, entity in (("#", "#35;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;")):
        text = text.replace(character, entity)
    return text
