"""Runs beside each other: the last and the best of each value, what differs, and which run is the best."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from engine_core.errors import ArgumentError, did_you_mean
from engine_core.results import Results

from .diff import compare_manifests, json_leaf
from .files import LineReader, number_in
from .reading import RunData
from .series import Logged, best_in, rule_of


class Value(NamedTuple):
    """A value of a run.

    Args:
        last: the latest; None if it was never logged, NaN if it was not finite.
        best: `{"value", "step", "epoch"}` of an evaluation result that was ever finite, else None.
    """

    last: Any
    best: Mapping[str, Any] | None

    @property
    def is_nan(self) -> bool:
        """Was the latest not finite?"""
        return isinstance(self.last, float) and math.isnan(self.last)


@dataclass(frozen=True)
class RankedRun:
    """A run beside others.

    Args:
        run: its folder's name, with as much of the path as tells it apart.
        status: `finished`, `paused` or `unfinished`.
        values: the values that any of the runs logged, by name.
        settings: what differs between the runs, by the keys of `diff`; None where a run has no such key.
    """

    run: str
    status: str
    values: Mapping[str, Value]
    settings: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return it for JSON, with NaN and infinity as strings."""
        values = {name: {"last": json_leaf(value.last), "best": value.best} for name, value in self.values.items()}
        settings = {key: json_leaf(value) for key, value in self.settings.items()}
        return {"run": self.run, "status": self.status, "values": values, "settings": settings}


def rank_runs(runs: Sequence[RunData], by: str | None = None, *, lower: bool | None = None) -> list[RankedRun]:
    """Return runs beside each other, each once: ranked, or without `by` as given.

    A run ranks by its best value, or by its last where it has no best. NaN ranks behind all numbers, and a run without
    the value behind all others. Equal runs stay as given.

    Args:
        by: the name of a value.
        lower: is lower better? None: as the runs say, see `Results`.

    Raises:
        ArgumentError: (a ValueError) if no run has this value, or the runs disagree on what is better or don't say it.
    """
    named = name_runs(runs)
    once = [run for _, run in named]
    names = names_of_values(once)
    if by is not None and lower is None:
        lower = is_lower_better(once, by)
    elif by is not None:
        _check_name(names, by)
    rows = [
        RankedRun(name, run.status, {v: value_of(run, v, lower=lower if v == by else None) for v in names}, settings)
        for (name, run), settings in zip(named, _settings(once), strict=True)
    ]
    return rows if by is None else sorted(rows, key=lambda row: _rank(row.values[by], descends=not lower))


def is_lower_better(runs: Sequence[RunData], name: str) -> bool:
    """Return whether the lower of two values is better, as all runs that have such a value and a direction say.

    Raises:
        ArgumentError: (a ValueError) if there is no such value, or they disagree, or none says it.
    """
    _check_name(names_of_values(runs), name)
    asked = (rule_of(run.manifest).is_lower_better(name) for run in runs if name in run.last or name in run.best)
    told = {lower for lower in asked if lower is not None}
    if len(told) != 1:
        who = "the runs' configs disagree on" if told else "neither a metric nor the name says"
        raise ArgumentError(f"{who} which {name!r} is better: say --lower or --higher")
    return told.pop()


def names_of_values(runs: Iterable[RunData]) -> list[str]:
    """Return the names of all values of runs but lists and mappings, in the order in which they were logged."""
    names = dict.fromkeys(name for run in runs for name in (*run.last, *run.best))
    lists = {name for run in runs for name, value in run.last.items() if isinstance(value, (list, dict))}
    return [name for name in names if name not in lists]


def value_of(run: RunData, name: str, *, lower: bool | None = None) -> Value:
    """Return a value of a run; `lower` overrules what the run takes for better."""
    last = run.last.get(name)
    if name in run.last and (last is None or (isinstance(last, float) and not math.isfinite(last))):
        last = math.nan  # files have null for it
    best = run.best.get(name)
    if lower not in (None, rule_of(run.manifest).is_lower_better(name)) and name.partition("/")[0] in run.evaluated:
        best = _best_anew(run, name, lower=bool(lower))
    return Value(last, best)


def _check_name(names: Sequence[str], name: str) -> None:
    if name not in names:
        raise ArgumentError(f"none of the runs has a value {name!r}{did_you_mean(name, names)}")


def _rank(value: Value, *, descends: bool) -> tuple[int, float]:
    number = number_in(value.last if value.best is None else value.best["value"])
    if number is not None:
        return 0, -number if descends else number
    return (1 if value.is_nan else 2), 0.0


def _best_anew(run: RunData, name: str, *, lower: bool) -> Mapping[str, Any] | None:
    """Return the best of what was logged, by the other rule; what is drawn has fewer digits."""
    rule, logged = Results(), Logged()
    rule.set_directions(*([name], []) if lower else ([], [name]))
    for line in LineReader(run.folder / "metrics.jsonl").read([])[1]:
        logged.add(line)
    return best_in(name, logged, rule)


def _settings(runs: Sequence[RunData]) -> list[dict[str, Any]]:
    """Return for each run what differs between any of them in settings and config."""
    found = [
        [d for d in compare_manifests(runs[0].manifest, run.manifest) if d.section in ("setting", "config")]
        for run in runs
    ]
    first = {d.key: d.a for differences in found for d in differences}
    return [{**first, **{d.key: d.b for d in differences}} for differences in found]


def name_runs(runs: Sequence[RunData]) -> list[tuple[str, RunData]]:
    """Return each run with its name; one that is given twice is there once."""
    once = list({run.folder.resolve(): run for run in runs}.values())
    return list(zip(names_of([run.folder for run in once]), once, strict=True))


def names_of(folders: Sequence[Path]) -> list[str]:
    """Return a name for each folder, the shortest end of its path that no other has.

    Example:
        >>> names_of([Path("/a/x/run"), Path("/a/y/run"), Path("/a/other")])
        ['x/run', 'y/run', 'other']
    """
    parts = [folder.resolve().parts for folder in folders]
    lengths = [1] * len(parts)
    while True:
        names = ["/".join(path[-length:]) for path, length in zip(parts, lengths, strict=True)]
        alike = {name for name, count in Counter(names).items() if count > 1}
        longer = [
            min(length + (name in alike), max(1, len(path)))
            for path, length, name in zip(parts, lengths, names, strict=True)
        ]
        if longer == lengths:
            return names
        lengths = longer
