"""What a run has left in its folder, as data to look at. Needs neither torch nor the run's plugins."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from engine_core.arguments import path_of
from engine_core.errors import ArgumentError
from engine_core.files import MOST_BYTES_OF_JSON, why_not
from engine_core.logger import is_event
from engine_core.manifest import NAME, Manifest, is_folder, read_manifest
from engine_core.messages import plural

from .files import LineReader, LoggedFile, Saved, list_checkpoints, list_logged_files, number_in, read_mapping
from .series import (
    LOSS,
    SPEED,
    Logged,
    Stretch,
    Thin,
    best_of,
    directions_of,
    evaluated_in,
    runs_of,
    speed_of,
    thin,
)

Status = Literal["finished", "paused", "unfinished"]
WATCHED = (NAME, "metrics.jsonl", "events.jsonl", "results.json", "timing.json", "files", "checkpoints")
TIMING_SCHEMA = 1
_OF_A_SPAN = ("count", "seconds", "own_seconds")
_MOST_WARNINGS = 250


class Sum(NamedTuple):
    """How often a span was, and how long in all: with the spans inside it, and without them."""

    times: int
    seconds: float
    own_seconds: float


@dataclass(frozen=True)
class Timing:
    """How long the parts of a run took in sum.

    Args:
        resumed_at: after how many batches the measured process began; None: at the run's begin.
    """

    batches: int
    resumed_at: int | None
    spans: Mapping[str, Sum]


@dataclass(frozen=True)
class RunData:
    """One run as it is on the disk.

    Args:
        folder: as it was given; for a manifest, the folder that it stands for.
        started: when the run began, with its offset.
        has_ended: whether the latest attempt has told its end; one that was killed never does.
        results: the content of `results.json`; empty unless the run is finished.
        series: what is drawn, by name.
        last: the latest value of each name.
        best: of each evaluation result, `{"value", "step", "epoch"}`.
        resumed: step and seconds at which the run was resumed.
        strips: how often each `Algorithm/EVENT` ran, and when.
        steps: how many batches are complete, as far as the files say.
        files: what was logged by `log_file`, the latest of each name first.
        warnings: those of the run, and what is wrong with its files.
    """

    folder: Path
    manifest: Manifest
    started: str
    status: Status
    has_ended: bool
    results: Mapping[str, Any]
    series: Mapping[str, Thin]
    last: Mapping[str, Any]
    best: Mapping[str, Mapping[str, Any]]
    resumed: list[tuple[float, float]]
    strips: Mapping[str, list[Stretch]]
    steps: float
    timing: Timing | None
    checkpoints: list[Saved]
    files: list[LoggedFile]
    warnings: list[str]

    @property
    def labels(self) -> set[str]:
        """Return the first words of names that share the charts of training."""
        return {"train", *self.evaluated}

    @property
    def evaluated(self) -> set[str]:
        """Return the first words of the results of evaluations."""
        return evaluated_in(self.manifest)


class RunReader:
    """Reads a run again and again; files that only grow are read on from where they were.

    Args:
        path: the run's folder or its manifest.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = path_of(path)
        self._file = self._path / NAME if is_folder(self._path) else self._path
        self._folder = folder = self._file.parent
        self._lines, self._older = (LineReader(folder / name) for name in ("metrics.jsonl", "events.jsonl"))
        self._logged, self._events, self._older_events = Logged(), list[dict[str, Any]](), list[dict[str, Any]]()

    def stamp(self) -> tuple[object, ...]:
        """Return what changes whenever a file of the run does."""
        return tuple(map(_stamp_of, (self._folder / name for name in WATCHED)))

    def read(self) -> RunData:
        """Return what the run has left by now.

        Raises:
            ArgumentError: (a ValueError) if there is no run, or a newer engine-core wrote it.
        """
        folder = self._folder
        problem = why_not(self._file, MOST_BYTES_OF_JSON)
        if problem:
            raise ArgumentError(f"{os.fspath(self._file)!r} can't be read: {problem}; give the folder of a run")
        manifest = read_manifest(self._path)
        warnings = list(manifest.warnings)
        began = str(read_mapping(self._file, []).get("started", "at an unknown time"))
        results = read_mapping(folder / "results.json", warnings)
        self._read_lines(warnings)
        diary, logged = [*self._older_events, *self._events], self._logged
        warnings += _told(diary)
        timing = _timing(results, diary, folder, warnings)
        status, has_ended = _status(results, diary)
        if status != "finished":  # those of an attempt before, which this one continues
            results = {}
        saved = list_checkpoints(folder)
        lower, higher = directions_of(manifest)
        warnings += [f"the config lists {name!r} under both `lower` and `higher`" for name in sorted(lower & higher)]
        warnings += [f"the checkpoint {found.name} is damaged" for found in saved if "damaged" in found.marks]
        return RunData(
            folder=folder,
            manifest=manifest,
            started=began,
            status=status,
            has_ended=has_ended,
            results=results,
            series=_thinned(logged, warnings),
            last=dict(logged.last),
            best=best_of(results, diary, logged, manifest),
            resumed=_resumed(diary, logged),
            strips=runs_of(diary),
            steps=number_in(results.get("batches")) or max(diary[-1]["step"] if diary else 0, logged.steps),
            timing=timing,
            checkpoints=saved,
            files=list_logged_files(folder),
            warnings=_once(warnings),  # the last, since others add some
        )

    def _read_lines(self, warnings: list[str]) -> None:
        """Add the lines that have come; an older version wrote events into a file of their own."""
        is_anew, lines = self._older.read(warnings)
        self._older_events = lines if is_anew else [*self._older_events, *lines]
        is_anew, lines = self._lines.read(warnings)
        if is_anew:
            self._logged, self._events = Logged(), []
        for line in lines:
            self._logged.add(line)
        self._events += filter(is_event, lines)


def _once(warnings: list[str]) -> list[str]:
    shown = list(dict.fromkeys(warnings))
    more = len(shown) - _MOST_WARNINGS
    return [*shown[:_MOST_WARNINGS], f"and {more:,} more warnings"] if more > 0 else shown


def _stamp_of(file: Path) -> object:
    try:
        status = file.lstat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _status(results: Mapping[str, Any], diary: list[dict[str, Any]]) -> tuple[Status, bool]:
    """Return how far the run is, and whether its latest attempt has told its end, which a killed one never does."""
    kinds = [line["kind"] for line in diary if line.get("kind") in _KINDS]
    last = kinds[-1] if kinds else "end" if results else ""
    if last == "pause":
        return "paused", True
    return "finished" if results and last == "end" else "unfinished", last in ("end", "fail")


_KINDS = ("start", "resume", "epoch", "progress", "evaluation", "pause", "end", "fail")


def _told(diary: list[dict[str, Any]]) -> list[str]:
    """Return the run's own warnings, and how its last attempt failed."""
    told = [f"{line.get('category')}: {line.get('message')}" for line in diary if line.get("kind") == "warning"]
    if diary and diary[-1].get("kind") == "fail":
        told.append(f"the last attempt failed after {plural(int(diary[-1]['step']), 'batch', 'batches')}")
    return told


def _resumed(diary: list[dict[str, Any]], logged: Logged) -> list[tuple[float, float]]:
    told = [(line["step"], line["seconds"]) for line in diary if line.get("kind") == "resume"]
    return sorted({*told, *logged.resumed})


def _thinned(logged: Logged, warnings: list[str]) -> dict[str, Thin]:
    series = {name: thin(found.x, found.t, found.y) for name, found in logged.series.items()}
    for name, found in series.items():
        if found.not_finite:
            warnings.append(f"{name} was not finite {plural(found.not_finite, 'time', 'times')}")
    if LOSS in logged.series and SPEED not in series:
        speed = speed_of(logged.series[LOSS])
        series[SPEED] = thin(speed.x, speed.t, speed.y)
    return series


def _timing(
    results: Mapping[str, Any], diary: list[dict[str, Any]], folder: Path, warnings: list[str]
) -> Timing | None:
    """Return the sums of the run: its results have them, or the events of a run that did not finish."""
    told = [results.get("timing"), *(line for line in reversed(diary) if line.get("kind") == "timing")]
    measured = next((each for each in told if isinstance(each, dict)), None)
    content = read_mapping(folder / "timing.json", warnings) if measured is None else measured  # of an older version
    if not content:
        return None
    if content.get("schema") != TIMING_SCHEMA:
        said = f"schema {content.get('schema')!r:.80}, and {TIMING_SCHEMA} is read"
        warnings.append(f"{'timing.json' if measured is None else 'the timing'} has {said}: left out")
        return None
    spans = content.get("spans")
    sums = {}
    for name, entry in spans.items() if isinstance(spans, dict) else ():
        found = [number_in(entry.get(key)) for key in _OF_A_SPAN] if isinstance(entry, dict) else []
        numbers = [number for number in found if number is not None and number >= 0]
        if len(numbers) == len(_OF_A_SPAN):
            sums[name] = Sum(int(numbers[0]), float(numbers[1]), float(numbers[2]))
    batches, began = number_in(content.get("batches")), number_in(content.get("resumed_at"))
    return Timing(int(batches or 0), None if began is None else int(began), sums) if sums else None
