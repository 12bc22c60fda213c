"""What a tracker adds to a step: TensorBoard, and MLflow in SQLite.

    python benchmarks/trackers.py [--rounds 12] [--steps 500] [--write]

A tiny MLP is trained with batches of 8: without a logger, with `run_files`, and with each tracker. A step logs two
values, the loss and the learning rate. The trainers take turns in one process, in short rounds, each timed in CPU time
of the process, threads included, until all is sent. What is added is the difference of the best rounds. Opening the
place is not in it. `--write` puts the figures into docs/explanation/speed.md.
"""

from __future__ import annotations

import argparse
import os
import re
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

import torch
from torch import nn

from engine_core import Trainer

PAGE = Path(__file__).resolve().parents[1] / "docs" / "explanation" / "speed.md"
MARKS = "<!-- trackers -->\n", "<!-- /trackers -->\n"
HEAD = """\
| logger | a step | added to a step | added to a value |
|---|---|---|---|
"""
VALUES = 2


def run_with(loggers: Any, stack: ExitStack, steps: int) -> Callable[[], float]:
    """Return what trains some steps with these loggers, and returns the CPU seconds of a step."""
    torch.manual_seed(0)
    batch = torch.randn(8, 16), torch.randint(4, (8,))
    trainer = Trainer(
        nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)),
        [batch] * 1_000_000,
        loss_fn=nn.CrossEntropyLoss(),
        optimizers=lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
        loggers=loggers,
        device="cpu",
        progress_bar=False,
        seed=0,
        max_duration="1000000ba",
    )
    stack.enter_context(trainer)
    trainer.fit("20ba")

    def run() -> float:
        began_s = time.process_time()
        trainer.fit(f"{steps}ba")
        return (time.process_time() - began_s) / steps

    return run


def measure(rounds: int, steps: int) -> dict[str, float]:
    """Return the CPU seconds of a step by logger."""
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        os.chdir(place)  # where MLflow makes a folder
        stack.callback(os.chdir, PAGE.parent)
        loggers: dict[str, Any] = {
            "none": [],
            "run_files": [("run_files", {"folder": f"{place}/files"})],
            "tensorboard": [("tensorboard", {"folder": f"{place}/tensorboard"})],
            "mlflow": [("mlflow", {"uri": f"sqlite:///{place}/mlflow.db"})],
        }
        runs = {name: run_with(made, stack, steps) for name, made in loggers.items()}
        best = dict.fromkeys(runs, float("inf"))
        for number in range(rounds):
            for name in [*runs][:: 1 if number % 2 else -1]:
                best[name] = min(best[name], runs[name]())
        return best


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    best = measure(options.rounds, options.steps)
    table = HEAD
    for name, took_s in best.items():
        added_us = 1e6 * (took_s - best["none"])
        added = f"{added_us:.0f} us | {added_us / VALUES:.0f} us" if name != "none" else "|"
        table += f"| {name if name == 'none' else f'`{name}`'} | {1e6 * took_s:.0f} us | {added} |\n"
    print(table)
    if options.write:
        before, after = (re.escape(mark) for mark in MARKS)
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(re.sub(f"(?s)(?<={before}).*?(?={after})", lambda _: table, page), encoding="utf-8")


if __name__ == "__main__":
    main()
