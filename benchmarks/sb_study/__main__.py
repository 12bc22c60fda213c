"""What Selective Backprop saves on real data: compute and time to the same validation loss. See README.md beside this.

    python benchmarks/sb_study run [--cases CASE ...] [--methods NAME ...] [--seeds 0 1]
    python benchmarks/sb_study report
    python benchmarks/sb_study tune [--case fashion] [--epochs 8]

`run` appends a line of JSON for each run to --out and skips those already there, so it can be stopped and continued,
and several processes can share the work, each with its own file; `report` combines the given files into RESULTS.md and
compute.svg; `tune` prints the loss of vanilla at several learning rates.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

# glibc's malloc hands freed activations back to the kernel, which distorts conv nets by a third.
SETTINGS = {
    "MALLOC_MMAP_THRESHOLD_": "2000000000",
    "MALLOC_TRIM_THRESHOLD_": "4000000000",
    "MALLOC_TOP_PAD_": "500000000",
    "OMP_NUM_THREADS": "1",
}
if __name__ == "__main__" and any(os.environ.get(name) != value for name, value in SETTINGS.items()):
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **SETTINGS})

import torch
from data import DEBIAN
from methods import METHODS
from plan import run_missing, tune
from report import read, write_report
from training import CASES

HERE = Path(__file__).parent
RESULTS = HERE / "results.jsonl"


def main() -> None:
    """Parse the command line and run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("--cases", nargs="+", choices=CASES, metavar="CASE", default=list(CASES), help=" | ".join(CASES))
    methods = f"default: all of the case; {' | '.join(METHODS)}"
    run.add_argument("--methods", nargs="+", choices=METHODS, metavar="METHOD", help=methods)
    run.add_argument("--epochs", nargs="+", type=float, help="default: the lengths of the case")
    run.add_argument("--seeds", nargs="+", type=int, help="default: those of the case")
    run.add_argument("--out", type=Path, default=RESULTS)
    report = commands.add_parser("report")
    report.add_argument("files", nargs="*", type=Path, default=[RESULTS])
    report.add_argument("--folder", type=Path, default=HERE, help="where RESULTS.md and compute.svg go")
    tuning = commands.add_parser("tune")
    tuning.add_argument("--case", choices=CASES, default="fashion")
    tuning.add_argument("--epochs", type=float, default=8)
    tuning.add_argument("--seeds", nargs="+", type=int, default=[0])
    for command in (run, tuning):
        command.add_argument("--fashion-mnist", type=Path, default=DEBIAN, metavar="FOLDER")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.command == "report":
        write_report([record for file in given.files for record in read(file)], given.folder)
    elif given.command == "tune":
        tune(given.case, given.epochs, given.seeds, given.fashion_mnist)
    else:
        parts = {"methods": given.methods, "epochs": given.epochs, "seeds": given.seeds}
        run_missing(given.cases, given.out, given.fashion_mnist, **parts)


if __name__ == "__main__":
    main()
