"""The results as a Markdown table for each case, from what the runs have written."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from ladder import Record, complete, ladder_of, price, ratio, ratios_by_seed
from plot import draw

BASELINES = ("vanilla", "vanilla, half batch", "vanilla, quarter batch")
SHOWN = (
    *(*BASELINES, "uniform", "composer", "stale"),
    *("carried", "carried, cdf", "carried, cdf, rate of half", "carried, cdf, end .9"),
)
DRAWN = "fashion at twice the rate"
UNIT = "forwards of one image"
HEAD = """# Results of the study

Made by `python benchmarks/sb_study report`; README.md there says what is measured, and how. *Loss* and *accuracy* are
the validation's after the longest run, as means over the seeds. *Compute* is what a method needs to reach the loss of
vanilla's longest run with the same seeds, as a share of that run's compute; *half* and *quarter* are the same for
vanilla with half or a quarter of the batch. In brackets: how many seeds reach the loss of that run with the same seed,
and the lowest and highest compute among them. `> 0.83`: the longest run has not reached the loss, and takes that much
compute. `< 0.70`: the shortest run has already reached it. *CPU time* is the share of compute times the cost of a unit
of compute, the median of all runs; it is left out where the runs were made on another machine.
"""


def read(path: Path) -> list[Record]:
    """Return the records of a file of JSON lines, none if there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def by_method(records: list[Record], case: str) -> dict[str, list[Record]]:
    """Return the records of a case by method, in their original order."""
    found: dict[str, list[Record]] = {}
    for record in records:
        if record["case"] == case:
            found.setdefault(record["method"], []).append(record)
    return {method: complete(runs) for method, runs in found.items()}


def as_markdown(records: list[Record]) -> str:
    """Return the page."""
    cases = list(dict.fromkeys(record["case"] for record in records))
    return "\n".join([HEAD, *(_section(case, by_method(records, case)) for case in cases)])


def _section(case: str, methods: dict[str, list[Record]]) -> str:
    seeds = sorted({len(_seeds(records)) for records in methods.values()})
    lines = [
        f"## {case}, {' to '.join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))} seeds",
        "",
        "| method | seeds | epochs | loss | accuracy | compute | CPU time | half | quarter |",
        "|---|---|---|---|---|---|---|---|---|",
        *(_row(name, methods) for name in methods),
        "",
    ]
    return "\n".join(lines)


def _row(name: str, methods: dict[str, list[Record]]) -> str:
    records = methods[name]
    ladder = ladder_of(records)
    last = ladder[-1]
    losses = [record["loss"] for record in records if record["epochs"] == last.epochs]
    deviation = statistics.stdev(losses) if len(losses) > 1 else 0.0
    vanilla, *others = (_with_seeds_of(records, methods.get(baseline)) for baseline in BASELINES)
    is_vanilla = name == BASELINES[0]
    cells = [
        name,
        str(len(_seeds(records))),
        ", ".join(f"{rung.epochs:g}" for rung in ladder),
        f"{last.loss:.4f} (sd {deviation:.4f})",
        f"{100 * last.accuracy:.2f} %",
        "1" if is_vanilla else _share(records, vanilla),
        "1" if is_vanilla else _time(records, vanilla),
        *(_share(records, other) for other in others),
    ]
    return f"| {' | '.join(cells)} |"


def _seeds(records: list[Record]) -> set[int]:
    return {record["seed"] for record in records}


def _with_seeds_of(records: list[Record], baseline: list[Record] | None) -> list[Record]:
    """Return the runs of a baseline that have the same seeds; none if one of them was not run."""
    wanted = _seeds(records)
    found = [record for record in baseline or () if record["seed"] in wanted]
    return found if _seeds(found) == wanted else []


def _share(records: list[Record], baseline: list[Record]) -> str:
    """Return the compute to reach a baseline's loss, and how many seeds reach it."""
    if not baseline:
        return ""
    found, seeds = ratios_by_seed(records, baseline), len(_seeds(records))
    limits = f": {min(found):.2f} to {max(found):.2f}" if found else ""
    return f"{_reached(records, baseline, 1)} ({len(found)} of {seeds}{limits})"


def _time(records: list[Record], baseline: list[Record]) -> str:
    if not baseline or (mine := price(records)) is None or (other := price(baseline)) is None:
        return ""
    return _reached(records, baseline, mine / other)


def _reached(records: list[Record], baseline: list[Record], factor: float) -> str:
    """Return the compute to reach a baseline's loss times a factor, or its known limit."""
    ladder, other = ladder_of(records), ladder_of(baseline)
    reached = ratio(ladder, other)
    if reached is None:
        return f"> {factor * ladder[-1].compute / other[-1].compute:.2f}"
    return f"{'< ' if reached.is_bound else ''}{factor * reached.cost:.2f}"


def write_report(records: list[Record], folder: Path) -> None:
    """Write RESULTS.md, and compute.svg of one case."""
    if not records:
        raise ValueError("there are no results to report: start with `python benchmarks/sb_study run`")
    (folder / "RESULTS.md").write_text(as_markdown(records))
    methods = by_method(records, DRAWN) or by_method(records, records[0]["case"])
    ladders = {name: ladder_of(methods[name]) for name in SHOWN if name in methods}
    (folder / "compute.svg").write_text(draw(ladders or {n: ladder_of(r) for n, r in methods.items()}, UNIT))
