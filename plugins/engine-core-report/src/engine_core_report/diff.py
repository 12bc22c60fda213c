"""Compare two finished runs by the files they wrote; needs neither plugins nor torch."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from engine_core.arguments import path_of
from engine_core.changes import ABSENT, changes, leaves
from engine_core.errors import ArgumentError
from engine_core.files import read_json
from engine_core.manifest import Manifest, read_manifest
from engine_core.messages import aligned

__all__ = ["Difference", "Section", "compare", "compare_manifests", "format_differences", "has_results", "who_moved"]

Section = Literal["setting", "config", "versions", "order", "results"]
NAMES = ("--out", "--profile")
"""Options of a command that only say where to write something."""
TIMES = ("seconds", "samples_per_second")
MEASURED = ("time/", "timing.")
"""What the names of results begin with that are measured times."""


@dataclass(frozen=True)
class Difference:
    """One thing that differs.

    Args:
        key: what it is, as in `algorithms[noise].args.std`; in the section `order` the event.
        a, b: the values of the two runs; None if absent.
        moved: in the section `order`, the algorithms that are in both orders and changed places.
    """

    section: Section
    key: str
    a: Any
    b: Any
    moved: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON, with NaN and infinity as strings."""
        content = asdict(self)
        return {k: json_leaf(v) for k, v in content.items() if k != "moved" or self.section == "order"}


def who_moved(before: Sequence[str], after: Sequence[str]) -> list[str]:
    """Return the fewest names to move to get from one order to the other, of those in both.

    That is all but the longest subsequence that kept its order (Schensted 1961).
    """
    places = {name: place for place, name in enumerate(before)}
    common = [name for name in after if name in places]
    kept: list[list[str]] = [[]]
    for name in common:
        fitting = [run for run in reversed(kept) if not run or places[run[-1]] < places[name]]
        kept.append([*max(fitting, key=len), name])
    longest = max(kept, key=len)
    return [name for name in common if name not in longest]


def json_leaf(value: Any) -> Any:
    """Return a value for JSON: NaN and infinity, which JSON lacks, as strings."""
    return json.dumps(value) if isinstance(value, float) and not math.isfinite(value) else value


def compare(run_a: Path | str, run_b: Path | str) -> list[Difference]:
    """Return what differs between two runs, each given by its folder or its manifest.

    Names and times don't count: the run's, the config file's, where it wrote to, when and how fast it ran. Final
    results are compared if both runs have them.

    Raises:
        ArgumentError: (a ValueError) if one of them is not a run.
    """
    runs = (path_of(run_a), path_of(run_b))
    a, b = map(read_manifest, runs)
    results = map(_results, runs) if all(map(has_results, runs)) else ({}, {})
    return [*compare_manifests(a, b), *_found("results", *results)]


def compare_manifests(a: Manifest, b: Manifest) -> list[Difference]:
    """Return what differs between two runs as they began, without their results."""
    return [
        *_found("setting", _settings(a), _settings(b)),
        *_found("config", _config(a), _config(b)),
        *_found("versions", a.versions, b.versions),
        *_found("order", _order(a), _order(b)),
    ]


def format_differences(differences: Sequence[Difference]) -> str:
    """Return a paragraph for each section with a line for each difference; empty if there is none."""
    paragraphs = []
    for section in dict.fromkeys(d.section for d in differences):
        rows = aligned((d.key, _line(d)) for d in differences if d.section == section)
        paragraphs.append("\n".join([section, *(f"  {row}" for row in rows)]))
    return "\n\n".join(paragraphs)


def has_results(run: Path) -> bool:
    """Did the run finish and write its results?"""
    return _results_of(run).exists()


def _line(difference: Difference) -> str:
    a, b = (_shown(difference.section, value) for value in (difference.a, difference.b))
    moved = f"  ({', '.join(difference.moved)} moved)" if difference.moved else ""
    return f"{a} -> {b}{moved}"


def _shown(section: Section, value: Any) -> str:
    if value is None:
        return "(none)"
    if section == "order":
        return ", ".join(value)
    return value if isinstance(value, str) else json.dumps(value)


def _found(section: Section, a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Difference]:
    for path, *both in changes(a, b):
        was, now = (None if value is ABSENT else value for value in both)
        yield Difference(section, path, was, now, tuple(who_moved(was or [], now or [])) if section == "order" else ())


def _settings(manifest: Manifest) -> dict[str, Any]:
    settings = manifest.model_dump(include={"seed", "device", "precision"})
    return {**settings, "command": " ".join(_without_names(manifest))}


def _without_names(manifest: Manifest) -> Iterator[str]:
    """Yield the words of the command without the paths of program, config and outputs."""
    words = iter(manifest.command[1:])
    for word in words:
        if word in NAMES:
            next(words, None)
        elif word != manifest.config_file and not word.startswith(tuple(f"{name}=" for name in NAMES)):
            yield word


def _config(manifest: Manifest) -> dict[str, Any]:
    """Return the config by key path; seed and name of the run are elsewhere."""
    return {k: v for k, v in leaves(manifest.config) if k not in ("trainer.seed", "trainer.run_name")}


def _order(manifest: Manifest) -> dict[str, list[str]]:
    return {event: [place.algorithm for place in places] for event, places in manifest.order.items() if places}


def _results_of(run: Path) -> Path:
    return (run if run.is_dir() else run.parent) / "results.json"


def _results(run: Path) -> dict[str, Any]:
    """Return the final results of a run by name, without times."""
    file = _results_of(run)
    content = read_json(file)
    if not isinstance(content, dict):
        raise ArgumentError(f"{str(file)!r} is damaged: it does not hold a mapping of results")
    return {key: value for key, value in leaves(content) if key not in TIMES and not key.startswith(MEASURED)}
