"""What a study found, as data: computed from the records of its runs. No torch."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from engine_core.errors import ArgumentError, did_you_mean
from engine_core.manifest import read_manifest
from engine_core.messages import join_words
from engine_core.registry import installed_version

from .costs import cost_ratio, reach
from .design import Arm, Design, Job
from .differences import Difference, holm, paired, summary
from .power import FEWEST
from .record import Record
from .wording import notes_of, words

SCHEMA = 1
LONGEST_PAUSE_S = 60.0
"""Between two runs whose times are compared: afterwards the machine may be another one, in effect."""
By = dict[int, Record]


def findings(design: Design, jobs: Sequence[Job], records: Mapping[str, Record], folder: Path | None) -> dict[str, Any]:
    """Return what `study.json` holds.

    Args:
        jobs: all runs that are known by now, in their order.
        records: of those that ended, by folder.
        folder: of the study, in which the runs' manifests are; None: they have none.
    """
    ended = [records[job.folder] for job in jobs if job.folder in records]
    reported = [each for each in ended if each.folder.startswith("runs/") and each.status == "finished"]
    longest = design.lengths[-1]
    runs = {arm.name: {each.seed: each for each in reported if (each.arm, each.length) == (arm.name, longest)}
            for arm in design.arms}  # fmt: skip
    lower = {name: is_lower for each in ended for name, is_lower in each.lower.items()}
    baseline = runs[design.baseline]
    differences = {name: _differences(name, runs, baseline, design, lower) for name in design.report}
    found = {
        "schema": SCHEMA,
        "written": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "base": design.base,
        "baseline": design.baseline,
        "seeds": list(design.seeds),
        "lengths": list(design.lengths),
        "report": list(design.report),
        "choose_by": design.choose_by,
        "target": dict(design.target),
        "lower_is_better": lower,
        "units": {"seconds": reported[0].unit if reported else "CPU s", "compute": design.compute},
        "devices": sorted({each.device for each in reported if each.device}),
        "versions": _versions(reported, folder),
        "notes": _notes(design, runs, ended, jobs, lower),
        "arms": [_arm(arm, runs, differences, reported, design, lower) for arm in design.arms],
        "runs": [
            {"name": job.name, **_told(records.get(job.folder) or replace(Record.of(job), status="missing"))}
            for job in jobs
        ],
    }
    return {**found, "notes": notes_of(found)}


def _told(record: Record) -> dict[str, Any]:
    """Return what is known of a run."""
    return {**asdict(record), **{name: _counted(record, name) for name in (*_COUNTED, "wall_s")}}


def _counted(record: Record, name: str) -> float | None:
    """Return a cost; where training counted 0 it did not count, as for the tokens of data without any."""
    value: float | None = getattr(record, name)
    return value if value or name in ("forward_rows", "backward_rows") else None


def _arm(
    arm: Arm,
    runs: Mapping[str, By],
    differences: Mapping[str, Mapping[str, Difference]],
    reported: Sequence[Record],
    design: Design,
    lower: Mapping[str, bool | None],
) -> dict[str, Any]:
    own = runs[arm.name]
    return {
        **_described(arm, own),
        "values": {name: _value(name, own, differences[name].get(arm.name)) for name in design.report},
        "cost": _cost(own, runs[design.baseline], reported),
        "ladder": _ladder(arm, reported, design),
        "to_target": _to_target(arm, reported, design, lower),
    }


def _differences(
    name: str, runs: Mapping[str, By], baseline: By, design: Design, lower: Mapping[str, bool | None]
) -> Mapping[str, Difference]:
    """Return each arm's difference to the baseline, corrected for the number of arms."""
    of = {arm: {seed: each.values.get(name) for seed, each in by.items()} for arm, by in runs.items()}
    plain = {seed: each.values.get(name) for seed, each in baseline.items()}
    return holm(
        {
            arm: paired(values, plain, higher_is_better=not lower.get(name))
            for arm, values in of.items()
            if arm != design.baseline
        }
    )


def _value(name: str, runs: By, difference: Difference | None) -> dict[str, Any]:
    by_seed = {str(seed): each.values.get(name) for seed, each in sorted(runs.items())}
    found = {**asdict(summary(by_seed.values())), "by_seed": by_seed}
    if difference is None:
        return {**found, "difference": None}
    return {**found, "difference": {**asdict(difference), "words": words(difference)}}


def _described(arm: Arm, runs: By) -> dict[str, Any]:
    tried = len(arm.settings) if len(arm.settings) > 1 else 0
    chosen = next((arm.settings[each.setting].label for each in runs.values()), "")
    return {"name": arm.name, "algorithms": arm.algorithms, "settings_tried": tried, "setting": chosen}


def _cost(runs: By, baseline: By, reported: Sequence[Record]) -> dict[str, Any]:
    """Return the mean cost of a run, and the ratio of its seconds to the baseline's.

    It is that of the pairs that ran side by side, or of all pairs of a seed where fewer than three did.
    """
    told: dict[str, Any] = {name: _mean(_counted(each, name) for each in runs.values()) for name in _COUNTED}
    if runs is baseline:
        return {**told, "ratio": None}
    place = {each.folder: index for index, each in enumerate(sorted(reported, key=lambda each: each.began))}
    pairs = [(runs[seed], baseline[seed]) for seed in sorted(runs.keys() & baseline.keys())]
    beside = [
        (a, b) for a, b in pairs if abs(place[a.folder] - place[b.folder]) == 1 and _pause_s(a, b) < LONGEST_PAUSE_S
    ]
    near = beside if len(beside) >= min(FEWEST, len(pairs)) else pairs
    ratio = cost_ratio((a.seconds, b.seconds) for a, b in near)
    return {**told, "ratio": ratio and {**ratio._asdict(), "adjacent": near is beside}}


def _pause_s(a: Record, b: Record) -> float:
    """Return the time between two runs, below 0 where they overlap."""
    first, second = sorted((a, b), key=lambda each: each.began)
    return second.began - first.began - first.wall_s


_COUNTED = ("seconds", "samples", "tokens", "batches", "forward_rows", "backward_rows")


def _mean(values: Iterable[float | None]) -> float | None:
    found = list(values)
    if not found or None in found:
        return None
    return sum(value for value in found if value is not None) / len(found)


def compute(record: Record, unit: str) -> float | None:
    """Return the row passes of a run, one for each row that goes forward, two for each that goes backward; or tokens.

    Tokens are those that were loaded: rows that are cut up, or of growing length, are of different size each.
    """
    if unit == "tokens":
        return _counted(record, unit)
    if record.forward_rows is None or record.backward_rows is None:
        return None
    return record.forward_rows + 2.0 * record.backward_rows


def _ladder(arm: Arm, reported: Sequence[Record], design: Design) -> list[dict[str, Any]]:
    """Return the means of an arm at each length, over the seeds that finished all of its lengths."""
    rungs = []
    of = {length: {each.seed: each for each in reported if (each.arm, each.length) == (arm.name, length)}
          for length in design.lengths}  # fmt: skip
    whole = set.intersection(*({*by_seed} for by_seed in of.values()))
    for length, by_seed in of.items():
        own = [each for seed, each in by_seed.items() if seed in whole]
        if not own:
            continue
        costs = {name: _mean(_counted(each, name) for each in own) for name in _COUNTED}
        told = {name: [each.values.get(name) for each in own] for name in (*design.report, *design.target)}
        values = {name: _mean(of) for name, of in told.items()}
        sd = {name: None if values[name] is None else summary(of).sd for name, of in told.items()}
        spent = _mean(compute(each, design.compute) for each in own)
        rungs.append({"length": length, "n": len(own), "values": values, "sd": sd, "compute": spent, **costs})
    return rungs


def _to_target(
    arm: Arm, reported: Sequence[Record], design: Design, lower: Mapping[str, bool | None]
) -> dict[str, Any]:
    """Return what it costs to reach each target, in compute and in seconds, from the ladder."""
    rungs, found = _ladder(arm, reported, design), {}
    for name, target in design.target.items():
        costs = {}
        for unit in ("compute", "seconds"):
            points = [(rung[unit], rung["values"][name]) for rung in rungs if rung[unit]]
            if (cost := reach(points, target, higher_is_better=not lower.get(name))) is not None:
                costs[unit] = cost._asdict()
        found[name] = {"target": target, **costs}
    return found


def _versions(reported: Iterable[Record], folder: Path | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in reported:
        if folder is not None:
            with suppress(ArgumentError):
                found |= read_manifest(folder / each.folder).versions
    return found or {name: installed_version(name) or "" for name in ("engine-core", "torch")}


def _notes(
    design: Design,
    runs: Mapping[str, By],
    ended: Sequence[Record],
    jobs: Sequence[Job],
    lower: Mapping[str, bool | None],
) -> list[str]:
    """Return what a reader has to know of the table."""
    notes, known = _notes_on_settings(design, ended, jobs), len(jobs)
    if unknown := [name for name in design.report if name in lower and lower[name] is None]:
        notes.append(f"nothing says which value of {join_words(unknown)} is better: higher is taken for better")
    baseline = runs[design.baseline]
    for what, equal in (("weights before training", _same_weights), ("first batches of each epoch", _same_data)):
        differ = {
            arm: [seed for seed in by if seed in baseline and not equal(by[seed], baseline[seed])]
            for arm, by in runs.items()
        }
        if other := [arm for arm, seeds in differ.items() if seeds]:
            notes.append(f"the {what} differ between {join_words([design.baseline, *other])} of the same seed")
        elif len(baseline) and any(by.keys() & baseline.keys() for arm, by in runs.items() if arm != design.baseline):
            notes.append(f"the {what} are equal in all arms of a seed")
    given = {name for each in ended if each.status == "finished" for name in each.values}
    for name in sorted({*design.report, *design.target, *([design.choose_by] if design.choose_by else ())} - given):
        if given:
            remedy = "name another, and no run is trained again"
            notes.append(f"no evaluation gave {name!r}{did_you_mean(name, given)}: {remedy}")
    if failed := [each for each in ended if each.status == "failed"]:
        names = join_words([each.name for each in failed])
        where = "" if design.make else "; the output.txt of each has its traceback"
        notes.append(f"{len(failed)} of {known} runs failed: {names}{where}")
    if missing := known - sum(each.status in ("finished", "failed") for each in ended):
        notes.append(f"{missing} of {known} runs are not done")
    return notes


def _notes_on_settings(design: Design, ended: Sequence[Record], jobs: Sequence[Job]) -> list[str]:
    """Return what a reader has to know of how settings were chosen."""
    tried = [job for job in jobs if job.folder.startswith("tune/")]
    begun = {job.arm for job in jobs if job.folder.startswith("runs/")}
    done = {each.folder for each in ended if each.status != "interrupted"}
    is_open = {job.arm for job in tried if job.folder not in done}
    notes = [
        f"{arm.name} is not trained with the seeds: none of its settings has a finite {design.choose_by}"
        for arm in design.arms
        if arm.name not in begun | is_open
    ]
    if tried and design.choose_by in design.report:
        notes.append(
            f"{design.choose_by} chose the settings and is reported, so it is too good for arms that were tuned"
        )
    return notes


def _same_weights(a: Record, b: Record) -> bool:
    return a.weights == b.weights


def _same_data(a: Record, b: Record) -> bool:
    """Do two runs get equal batches, as far as both go?"""
    return all(first == second for first, second in zip(a.data, b.data, strict=False))
