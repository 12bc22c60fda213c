"""Which runs a study consists of, and in which order; runs what is missing."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from methods import METHODS
from report import read
from training import CASES, rate_factor, train

SECONDS = {"fashion": 3.3, "fashion tested": 3.3, "digits": 0.2}
"""The CPU time of a vanilla epoch on the machine of RESULTS.md."""
RATES = (0.1, 0.2, 0.4, 0.8)


class Run(NamedTuple):
    """What distinguishes one run from another."""

    case: str
    method: str
    epochs: float
    seed: int


def runs_of(
    name: str,
    methods: Iterable[str] | None = None,
    epochs: Iterable[float] | None = None,
    seeds: Iterable[int] | None = None,
) -> list[Run]:
    """Return the runs of a case: all of one seed before the next, long ones first, the methods in turns.

    The methods take turns so that whatever slows the machine down for a while slows all of them.
    """
    case, given = CASES[name], None if epochs is None else list(epochs)
    chosen = list(methods or case.methods or METHODS)
    lengths = {method: given or case.lengths.get(METHODS[method].kind, case.lengths["pruned"]) for method in chosen}
    longest = max(map(len, lengths.values()))
    turns = [(method, lengths[method][-1 - i]) for i in range(longest) for method in chosen if i < len(lengths[method])]
    wanted = None if seeds is None else list(seeds)
    of_method = {method: wanted or list(case.seeds_of(method)) for method in chosen}
    all_seeds = sorted({seed for some in of_method.values() for seed in some})
    return [Run(name, *turn, seed) for seed in all_seeds for turn in turns if seed in of_method[turn[0]]]


def estimate_s(run: Run) -> float:
    """Return roughly how long a run takes, from the compute of an epoch."""
    case, method = CASES[run.case], METHODS[run.method]
    share = {"vanilla": 1.0, "pruned": 0.75, "variant": 0.6}[method.kind]
    return SECONDS[case.data] * run.epochs * share


def run_missing(
    cases: Iterable[str],
    out: Path,
    folder: Path,
    methods: Iterable[str] | None = None,
    epochs: Iterable[float] | None = None,
    seeds: Iterable[int] | None = None,
) -> None:
    """Train what `out` does not have, and append a line to it for each run."""
    done = {tuple(record[field] for field in Run._fields) for record in read(out)}
    missing = [run for name in cases for run in runs_of(name, methods, epochs, seeds) if run not in done]
    left_s = sum(map(estimate_s, missing))
    print(f"{len(missing)} runs, {len(done)} already in {out}; about {left_s / 60:.0f} minutes", flush=True)
    for run in missing:
        record = {**run._asdict(), **train(run.method, CASES[run.case], run.epochs, run.seed, folder)}
        with out.open("a") as file:
            file.write(json.dumps(record) + "\n")
        left_s -= estimate_s(run)
        print(f"{_said(record)}; about {left_s / 60:.0f} minutes left", flush=True)


def _said(record: dict[str, object]) -> str:
    return ", ".join(f"{key} {value}" for key, value in record.items())


def tune(name: str, epochs: float, seeds: Iterable[int], folder: Path) -> None:
    """Print the mean vanilla loss in a case at each batch size and learning rate."""
    for method in (name for name, method in METHODS.items() if method.kind == "vanilla"):
        for rate in RATES:
            case = CASES[name]._replace(lr=rate / rate_factor(METHODS[method]))
            losses = [train(method, case, epochs, seed, folder)["loss"] for seed in seeds]
            print(f"{method}, rate {rate}: loss {statistics.mean(losses):.4f}", flush=True)
