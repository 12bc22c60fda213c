"""The results as a Markdown table for each case. Knows no training: it reads what the runs have written."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from ladder import Reached, Record, Rung, ladder_of, ratio, spread
from plot import draw

BASELINES = ("vanilla", "vanilla, half batch", "vanilla, quarter batch")
SHOWN = (*BASELINES, "uniform", "composer", "stale", "carried", "carried, cdf")
RATES = ("fashion", "fashion at twice the rate")
BETTER = "fashion, each method at the better of two rates"
UNIT = "forwards of one image"
HEAD = """# Results of the study

Made by `python benchmarks/sb_study report`; see README.md there for what is measured, and how. *Loss* and *accuracy*
are those of the validation after the longest run, mean over the seeds. *Compute* and *CPU time* are what a method
needs to reach the loss of vanilla's longest run, as a share of what that run takes; in brackets least and most with
one seed left out. *Half* and *quarter*: the compute to the loss of vanilla with such a batch, as a share of its. A `<`
says that the shortest run had reached it already; `-` that no run did.
"""


def read(path: Path) -> list[Record]:
    """Return the records of a file of JSON lines; no file, no records."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def by_method(records: list[Record], case: str) -> dict[str, list[Record]]:
    """Return the records of a case by method, in the order in which they came."""
    found: dict[str, list[Record]] = {}
    for record in records:
        if record["case"] == case:
            found.setdefault(record["method"], []).append(record)
    return found


def at_better_rates(records: list[Record]) -> list[Record]:
    """Return the runs of a further case: each method at that of the two rates which ends at the lower loss.

    A method, or a seed, that was run at one rate alone is left out, so that all had the same choice.
    """
    found: list[Record] = []
    seeds = [{record["seed"] for record in records if record["case"] == case} for case in RATES]
    records = [record for record in records if record["seed"] in seeds[0] & seeds[1]]
    at_one, at_other = (by_method(records, case) for case in RATES)
    for method in (name for name in at_one if name in at_other):
        runs = min(at_one[method], at_other[method], key=lambda runs: ladder_of(runs)[-1].loss)
        found += [{**record, "case": BETTER} for record in runs]
    return found


def as_markdown(records: list[Record]) -> str:
    """Return the page."""
    records = [*at_better_rates(records), *records]
    cases = list(dict.fromkeys(record["case"] for record in records))
    return "\n".join([HEAD, *(_section(case, by_method(records, case)) for case in cases)])


def _section(case: str, methods: dict[str, list[Record]]) -> str:
    seeds = len({record["seed"] for records in methods.values() for record in records})
    lines = [
        f"## {case}, {seeds} seeds",
        "",
        "| method | epochs | loss | accuracy | compute | CPU time | half | quarter |",
        "|---|---|---|---|---|---|---|---|",
        *(_row(name, methods) for name in methods),
        "",
    ]
    return "\n".join(lines)


def _row(name: str, methods: dict[str, list[Record]]) -> str:
    records = methods[name]
    ladder = ladder_of(records)
    last = ladder[-1]
    lengths = ", ".join(f"{rung.epochs:g}" for rung in ladder)
    losses = [record["loss"] for record in records if record["epochs"] == last.epochs]
    deviation = statistics.stdev(losses) if len(losses) > 1 else 0.0
    cells = [name, lengths, f"{last.loss:.4f} (sd {deviation:.4f})", f"{100 * last.accuracy:.2f} %"]
    cells += [_against(records, methods.get(BASELINES[0]), field) for field in ("compute", "cpu_s")]
    cells += [_share(ladder, methods.get(baseline)) for baseline in BASELINES[1:]]
    return f"| {' | '.join(cells)} |"


def _against(records: list[Record], baseline: list[Record] | None, field: str) -> str:
    if baseline is None:
        return ""
    if records is baseline:
        return "1"
    reached = ratio(ladder_of(records), ladder_of(baseline), field)
    limits = spread(records, baseline, field)
    return _said(reached) + (f" ({limits[0]:.2f} to {limits[1]:.2f})" if limits else "")


def _share(ladder: list[Rung], baseline: list[Record] | None) -> str:
    return "" if baseline is None else _said(ratio(ladder, ladder_of(baseline), "compute"))


def _said(reached: Reached | None) -> str:
    return "-" if reached is None else f"{'< ' if reached.is_bound else ''}{reached.cost:.2f}"


def write_report(records: list[Record], folder: Path) -> None:
    """Write RESULTS.md, and compute.svg of the first case."""
    if not records:
        raise ValueError("there are no results to report: begin with `python benchmarks/sb_study run`")
    (folder / "RESULTS.md").write_text(as_markdown(records))
    better = at_better_rates(records)
    methods = by_method(better, BETTER) if better else by_method(records, records[0]["case"])
    ladders = {name: ladder_of(methods[name]) for name in SHOWN if name in methods}
    (folder / "compute.svg").write_text(draw(ladders or {n: ladder_of(r) for n, r in methods.items()}, UNIT))
