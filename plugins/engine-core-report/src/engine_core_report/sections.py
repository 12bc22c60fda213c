"""The sections of a page beside its curves, as rows of tables. Knows no HTML."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import yaml

from .diff import compare_manifests
from .files import LARGEST
from .pictures import to_svg
from .ranking import value_of
from .reading import RunData
from .series import strip_of
from .wording import NOTHING, Cell, cell, percent, seconds, setting, size

PARTS = ("data", "forward", "loss", "backward", "optimizer", "algorithms", "callbacks", "evaluation", "rest")
_OF_EVENT = {f"event/{part}": part for part in ("forward", "loss", "backward")} | {"event/dataloader": "data"}
_OF_KIND = {"algorithm": "algorithms", "callback": "callbacks", "optimizer": "optimizer"}
_COUNTED = ("epochs", "batches", "samples", "seconds", "samples_per_second")
STRIP_CELLS = 120
MOST_BYTES_OF_FILES = 2_000_000
_IMAGES = {"png": "image/png", "svg": "image/svg+xml"}
_PNG = b"\x89PNG\r\n\x1a\n"
Named = tuple[str, RunData]


class Line(NamedTuple):
    """A row of the summary: for each run the last value and, of an evaluation result, the best and where it was."""

    name: str
    values: list[tuple[Cell, Cell | None, str]]


def summary_of(runs: Sequence[Named]) -> list[Line]:
    """Return the rows of the summary."""
    rows = [Line("status", [(Cell(run.status), None, "") for _, run in runs])]
    for key in _COUNTED:
        known = [run.results.get(key, run.steps if key == "batches" else None) for _, run in runs]
        if any(value is not None for value in known):
            rows.append(Line(key.replace("_", " "), [(cell(value), None, "") for value in known]))
    names = dict.fromkeys(name for _, run in runs for name in (*run.last, *run.best))
    return [*rows, *(Line(name, [_last_and_best(run, name) for _, run in runs]) for name in names)]


def _last_and_best(run: RunData, name: str) -> tuple[Cell, Cell | None, str]:
    value = value_of(run, name)
    last, best = cell(value.last), value.best
    if best is None:
        return last, None, ""
    places = [f"{word} {best[word]:,}" for word in ("step", "epoch") if best.get(word) is not None]
    return last, cell(best["value"]), ", ".join(places)


def differences_of(first: RunData, run: RunData) -> list[tuple[str, str, str, str]]:
    """Return what `diff` finds between two runs: section, key, and both values."""
    found = compare_manifests(first.manifest, run.manifest)
    return [(d.section, d.key, setting(d.a), setting(d.b)) for d in found]


class Part(NamedTuple):
    """A part of the time; `start` and `share` are of 1."""

    name: str
    colour: int
    start: float
    share: float
    percent: str
    seconds: str
    each: str


class Time(NamedTuple):
    """Where the time of a run went."""

    run: str
    total: str
    since: str
    words: str
    parts: list[Part]


def time_of(name: str, run: RunData) -> Time | None:
    """Return the parts of a run's time, or None if it was not measured."""
    if run.timing is None:
        return None
    sums = dict.fromkeys(PARTS, 0.0)
    for span, found in run.timing.spans.items():
        sums[_part_of(span)] += found.own_seconds
    total = sum(sums.values())
    if total <= 0:
        return None
    parts, start = [], 0.0
    for colour, (part, took) in enumerate(sums.items()):
        share = took / total
        each = seconds(took / run.timing.batches) if run.timing.batches else NOTHING
        parts.append(Part(part, colour, start, share, percent(share), seconds(took), each))
        start += share
    began = run.timing.resumed_at
    since = f" of the attempt that began after {began:,} batches" if began else ""
    words = ", ".join(f"{part.name} {part.percent}" for part in parts)
    return Time(name, seconds(total), since, words, parts)


def _part_of(span: str) -> str:
    """Return the part of a span; what lies around the others, and spans of one's own, is the rest."""
    kind, _, event = span.partition("/")
    if kind == "event" and event.startswith("eval"):
        return "evaluation"
    return _OF_EVENT.get(span) or _OF_KIND.get(kind, "rest")


class Ran(NamedTuple):
    """How often an algorithm ran at an event, where, and what it cost; `cells` are shares of 1."""

    run: str
    algorithm: str
    event: str
    times: str
    share: str
    words: str
    cells: list[float]
    cost: str
    each: str


def algorithms_of(name: str, run: RunData) -> list[Ran]:
    """Return a row for each algorithm and event of a run."""
    told = run.results.get("algorithms")
    counts: dict[str, float] = {key: sum(s.count for s in stretches) for key, stretches in run.strips.items()}
    if isinstance(told, Mapping):
        counts = {
            **{key: n for key, n in told.items() if type(n) is int and abs(n) <= LARGEST},
            **dict.fromkeys(counts.keys() - told, 0),
        }
    for key in [key for key, count in counts.items() if not count and key not in (told or ())]:
        del counts[key]
    return [_ran(name, run, key, round(count)) for key, count in counts.items()]


def _ran(name: str, run: RunData, key: str, count: int) -> Ran:
    algorithm, _, event = key.partition("/")
    stretches = run.strips.get(key, [])
    cells = strip_of(stretches, run.steps, min(STRIP_CELLS, max(1, int(run.steps)))) if stretches else []
    share = percent(min(1.0, count / run.steps)) if run.steps else NOTHING
    span = run.timing.spans.get(f"algorithm/{algorithm}/{event.lower()}") if run.timing else None
    words = f"{key} ran {count:,} times in {int(run.steps):,} steps{_where(cells)}"
    cost, each = (seconds(span.seconds), seconds(span.seconds / max(1, span.times))) if span else (NOTHING, NOTHING)
    return Ran(name, algorithm, event.lower() or NOTHING, f"{count:,}", share, words, cells, cost, each)


def _where(cells: Sequence[float]) -> str:
    busy = [index for index, share in enumerate(cells) if share]
    if not busy:
        return ""
    return f", from {percent(busy[0] / len(cells))} to {percent((busy[-1] + 1) / len(cells))} of the run"


class Order(NamedTuple):
    """The order at an event; each place is algorithm, what ships it, and why. The picture is an SVG."""

    event: str
    places: list[tuple[str, str, str]]
    picture: str
    is_open: bool


def orders_of(run: RunData) -> Iterator[Order]:
    """Yield the order at each event of a run; the one that says most is open."""
    explanation, told = run.manifest.explanation(), run.manifest.order
    longest = max(told, key=lambda event: len(told[event]), default=None)  # the first of them
    for event, places in told.items():
        shown = [(p.algorithm, " ".join(filter(None, (p.distribution, p.version))), p.why) for p in places]
        derived = event in explanation.derivations and any(
            order for _, order in explanation.derivations[event].steps or ((0, explanation.derivations[event].given),)
        )
        yield Order(event, shown, to_svg(explanation, event) if derived else "", event == longest)


class Shown(NamedTuple):
    """A logged file to show: an image as the address of its content, else as text."""

    run: str
    name: str
    step: str
    size: str
    image: str
    text: str


def files_of(runs: Sequence[Named]) -> tuple[list[Shown], int]:
    """Return the logged files that fit on a page, the latest of each name first, and how many are left out."""
    found = [(name, file) for name, run in runs for file in run.files]
    latest = {(name, file.name): file for name, file in reversed(found)}
    found.sort(key=lambda one: latest[one[0], one[1].name] is not one[1])
    shown, room = list[Shown](), MOST_BYTES_OF_FILES
    for name, file in found:
        if file.size > room:
            continue
        content = file.read()
        kind = file.name.rpartition(".")[2]
        if kind == "png" and not content.startswith(_PNG):
            continue
        room -= len(content)
        image = f"data:{_IMAGES[kind]};base64,{base64.b64encode(content).decode()}" if kind in _IMAGES else ""
        text = "" if image else content.decode(errors="replace")
        shown.append(Shown(name, file.name, f"{file.step:,}", size(len(content)), image, text))
    return shown, len(found) - len(shown)


class Checkpoint(NamedTuple):
    """A row of the checkpoints."""

    run: str
    name: str
    marks: tuple[str, ...]
    epoch: str
    batch: str
    size: str


def checkpoints_of(name: str, run: RunData) -> list[Checkpoint]:
    """Return a row for each checkpoint of a run, the oldest first."""
    return [Checkpoint(name, s.name, s.marks, f"{s.epoch:,}", f"{s.batch:,}", size(s.size)) for s in run.checkpoints]


class Settings(NamedTuple):
    """How a run was configured and started."""

    run: str
    config: str
    versions: list[tuple[str, str]]
    command: str


def settings_of(name: str, run: RunData) -> Settings:
    """Return config, versions and command of a run."""
    manifest = run.manifest
    config = yaml.safe_dump(manifest.config, sort_keys=False, allow_unicode=True, width=100)
    return Settings(name, config, list(manifest.versions.items()), shlex.join(manifest.command))
