"""The picture of the loop: `python docs/loop_picture.py` draws images/loop.svg, each event with who listens to it.

The events, their pairs and where the list is reversed are the engine's own. On the left are the callbacks of the core
with a method for the event, on the right the algorithms under plugins/ that list it.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

from engine_core import Callback, Event
from engine_core.registry import CORE, Registry

FILE = Path(__file__).parent / "images" / "loop.svg"
OURS = {project.parent.name for project in Path(__file__).parents[1].glob("plugins/*-plugin/pyproject.toml")}

LEVELS = [
    ("fit", Event.FIT_START, Event.FIT_END),
    ("each epoch", Event.EPOCH_START, Event.EPOCH_CHECKPOINT),
    ("each batch", Event.BEFORE_DATALOADER, Event.BATCH_CHECKPOINT),
    ("each microbatch", Event.BEFORE_FORWARD, Event.AFTER_BACKWARD),
    ("evaluation, each loader", Event.EVAL_START, Event.EVAL_END),
    ("each batch", Event.EVAL_BATCH_START, Event.EVAL_BATCH_END),
]
"""What repeats, by its first and its last event."""

LAST = {last for *_, last in LEVELS}
BETWEEN = {
    Event.BEFORE_DATALOADER: "next batch",
    Event.BATCH_START: "gradients cleared",
    Event.BEFORE_FORWARD: "model",
    Event.BEFORE_LOSS: "loss",
    Event.BEFORE_BACKWARD: "backward",
    Event.AFTER_BACKWARD: "gradients clipped",
    Event.AFTER_TRAIN_BATCH: "optimizers step",
    Event.BATCH_END: "evaluation, if it is due",
    Event.EPOCH_END: "evaluation, if it is due",
    Event.EVAL_BEFORE_FORWARD: "model",
    Event.EVAL_AFTER_FORWARD: "loss and metrics",
}
"""What the loop does right after an event."""

WIDTH, LEFT, CENTRE, RIGHT = 800, 218, 369, 520  # where names end, events are centred, and names begin
BOX, LINE, GAP, COLUMN = 164, 15, 8, 37  # width of an event, heights of a line and between rows, characters of names
FRAMED = 10  # what a frame takes below its last event
FILLS = {"pair": "#cfe3f7", "undo": "#f9d9c2", "alone": "#e3e3e3"}
DARK, GREY = 'fill="#222222"', 'fill="#666666"'


class Row(NamedTuple):
    """An event with its place: top and height."""

    event: Event
    top: int
    height: int


def listeners() -> dict[Event, tuple[list[str], list[str]]]:
    """Return the registered names of the callbacks and of the algorithms at each event."""
    registry = Registry.scan()
    callbacks = {r.name: registry.load(r.kind, r.name) for r in registry.records if _is_of(r, "callbacks", {CORE})}
    algorithms = {r.name: registry.load(r.kind, r.name) for r in registry.records if _is_of(r, "algorithms", OURS)}
    return {
        event: (
            [name for name, kind in callbacks.items() if hasattr(kind, event) and not hasattr(Callback, event)],
            [name for name, made in algorithms.items() if event in made.metadata.events],
        )
        for event in Event
    }


def _is_of(record: object, kind: str, distributions: set[str]) -> bool:
    return record.kind == kind and record.distribution in distributions  # type: ignore[attr-defined]


def as_svg() -> str:
    """Return the picture."""
    listening = {event: [textwrap.wrap(", ".join(n), COLUMN) for n in names] for event, names in listeners().items()}
    rows, y = {}, 118
    for event in Event:
        y += 30 * sum(event is first for _, first, _ in LEVELS)
        height = max(24, LINE * max(map(len, listening[event])) + 6)
        rows[event] = Row(event, y, height)
        y += height + GAP + 17 * (event in BETWEEN) + FRAMED * (event in LAST)
    lines = _head(y + 8)
    for depth, (label, first, last) in _with_depths():
        lines += _frame(label, depth, rows[first].top - 22, rows[last].top + rows[last].height + 8)
    for event, row in rows.items():
        lines += _row(row, *listening[event])
    return "\n".join([*lines, "</svg>", ""])


def _with_depths() -> list[tuple[int, tuple[str, Event, Event]]]:
    order = list(Event)
    spans = [(order.index(first), order.index(last)) for _, first, last in LEVELS]
    return [
        (sum(a <= first and last <= b for a, b in spans) - 1, level)
        for level, (first, last) in zip(LEVELS, spans, strict=True)
    ]


def _head(height: int) -> list[str]:
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    font = 'font-family="system-ui, sans-serif" font-size="12"'
    names = ", ".join(event.value for event in Event)
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title description" {font}>',
        '  <title id="title">The training loop with its events, callbacks and algorithms</title>',
        f'  <desc id="description">The events in the order in which they fire: {names}.</desc>',
        f'  <rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff"/>',
        f'  <text x="24" y="32" font-size="16" font-weight="600" {DARK}>The loop and its {len(Event)} events</text>',
        *_legend(24, "pair", "half of a pair"),
        *_legend(160, "undo", "AFTER half: the list of algorithms is reversed"),
        *_legend(456, "alone", "not part of a pair"),
        f'  <text x="{LEFT}" y="98" text-anchor="end" font-weight="600" {DARK}>callbacks of the core</text>',
        f'  <text x="{CENTRE}" y="98" text-anchor="middle" font-weight="600" {DARK}>events = hooks</text>',
        f'  <text x="{RIGHT}" y="98" font-weight="600" {DARK}>algorithms of this repository</text>',
    ]


def _legend(x: int, kind: str, text: str) -> list[str]:
    return [
        (
            f'  <rect x="{x}" y="50" width="14" height="14" rx="3" fill="{FILLS[kind]}" stroke="#999999"/>'
            f'<text x="{x + 20}" y="61" {GREY}>{text}</text>'
        )
    ]


def _frame(label: str, depth: int, top: int, bottom: int) -> list[str]:
    x, width = LEFT + 12 + 9 * depth, RIGHT - LEFT - 24 - 18 * depth
    return [
        f'  <rect x="{x}" y="{top}" width="{width}" height="{bottom - top}" rx="6" fill="none" stroke="#bbbbbb"/>',
        f'  <text x="{x + 8}" y="{top + 15}" font-size="11" font-style="italic" {GREY}>{label}</text>',
    ]


def _row(row: Row, callbacks: list[str], algorithms: list[str]) -> list[str]:
    event, middle = row.event, row.top + row.height // 2
    x = CENTRE - BOX // 2
    fill = FILLS["undo" if event.is_undo else "pair" if event.partner else "alone"]
    drawn = [
        (
            f'  <rect x="{x}" y="{middle - 12}" width="{BOX}" height="24" rx="5" fill="{fill}" stroke="#999999"/>'
            f'<text x="{CENTRE}" y="{middle + 4}" text-anchor="middle" font-weight="600" {DARK}>{event}</text>'
        )
    ]
    for names, place in ((callbacks, f'x="{LEFT}" text-anchor="end"'), (algorithms, f'x="{RIGHT}"')):
        first = middle + 4 - LINE * (len(names) - 1) // 2
        drawn += [
            f'  <text {place} y="{first + LINE * n}" {DARK}>{escape(name)}</text>' for n, name in enumerate(names)
        ]
    if event in BETWEEN:
        y = row.top + row.height + 17 + FRAMED * (event in LAST)
        drawn.append(
            f'  <text x="{CENTRE}" y="{y}" text-anchor="middle" font-size="11" {GREY}>({BETWEEN[event]})</text>'
        )
    return drawn


if __name__ == "__main__":
    FILE.write_text(as_svg(), encoding="utf-8")
