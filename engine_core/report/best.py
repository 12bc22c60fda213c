"""The best values of a run, and which of two values it takes for better."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..manifest import Manifest
from ..results import Results
from .files import number_in
from .series import Logged, Series


def evaluated_in(manifest: Manifest) -> set[str]:
    """Return the first words of the results of evaluations."""
    evaluated = manifest.config.get("eval_data")
    named = {label for label in evaluated if isinstance(label, str)} if isinstance(evaluated, dict) else set()
    return named or {"eval"}


def best_of(
    results: Mapping[str, Any], diary: list[dict[str, Any]], logged: Logged, manifest: Manifest
) -> dict[str, Mapping[str, Any]]:
    """Return the best values as the run noted them, or else by the same rule from what was logged."""
    noted = results.get("best")
    if not isinstance(noted, dict):
        evaluated = [line["best"] for line in diary if isinstance(line.get("best"), dict)]
        noted = evaluated[-1] if evaluated else _best_logged(logged, manifest)
    return {
        name: {key: number_in(best.get(key)) for key in ("value", "step", "epoch")}
        for name, best in noted.items()
        if _is_best(best)
    }


def _is_best(best: Any) -> bool:
    return isinstance(best, dict) and number_in(best.get("value")) is not None


def _best_logged(logged: Logged, manifest: Manifest) -> dict[str, Any]:
    labels, rule = evaluated_in(manifest), rule_of(manifest)
    found = {name: best_in(name, logged, rule) for name in logged.series if name.partition("/")[0] in labels}
    return {name: best for name, best in found.items() if best is not None}


def rule_of(manifest: Manifest) -> Results:
    """Return what a run takes for better, as metrics and config say; a name of which that says both is left out."""
    lower, higher = directions_of(manifest)
    results = Results(higher_is_better=manifest.higher_is_better or {})
    results.set_directions(lower - higher, higher - lower)
    return results


def directions_of(manifest: Manifest) -> tuple[set[str], set[str]]:
    """Return the names of which a run's config says that lower is better, and those of which it says higher."""
    told = manifest.config.get("results")
    lower, higher = (_names(told.get(key) if isinstance(told, dict) else None) for key in ("lower", "higher"))
    return {*lower}, {*higher}


def best_in(name: str, logged: Logged, rule: Results) -> dict[str, Any] | None:
    """Return the best value of those that were logged, in the form of `results.json`; None if none was finite."""
    series, results = logged.series.get(name, Series()), replace(rule, last={}, best={}, improved=set())
    for step, value in zip(series.x, series.y, strict=True):
        if value is not None:
            results.record({name: value}, int(step), 0)
    best = results.best.get(name)
    return None if best is None else {"value": best.value, "step": best.step, "epoch": None}


def _names(value: Any) -> list[str]:
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []
