"""What an adapter adds to a step of another library's trainer.

    python benchmarks/adapters.py [LIBRARY ...] [--rounds 12] [--steps 300] [--write]

Each trainer trains a tiny MLP with batches of 8, as it is, with the adapter, and with algorithms. These take turns in
one process, in short rounds, each timed in CPU time of the process. The ratio is that of the best rounds. Lightning's
own side has one empty callback, since the first costs it more than all that follow. Also measured is what importing the
adapter adds to importing its library. `--write` puts the figures into docs/explanation/speed.md. Exits with 1 if a goal
is missed.
"""

from __future__ import annotations

import argparse
import importlib
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

IMPORTS = {
    "lightning": ("from lightning import Trainer", "from engine_core_lightning import EngineCallback"),
    "transformers": ("from transformers import Trainer", "from engine_core_transformers import EngineTrainer"),
    "accelerate": ("from accelerate import Accelerator", "from engine_core_accelerate import EngineLoop"),
}
LIBRARIES = tuple(IMPORTS)
GOALS = {"adapter": 1.10, "label_smoothing+ema": 1.45}
PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "speed.md"
MARKS = "<!-- adapters -->\n", "<!-- /adapters -->\n"
HEAD = """\
| trainer | alone | with the adapter | ratio | with `label_smoothing` and `ema` | ratio | import, with the adapter |
|---|---|---|---|---|---|---|
"""


class Figures(NamedTuple):
    """CPU seconds of a step by what was run, and of the imports of the library, and of adapter and library."""

    steps: Mapping[str, float]
    imports: tuple[float, float]

    def ratio(self, name: str) -> float:
        """Return how long a step takes, relative to the trainer alone."""
        return self.steps[name] / self.steps["bare"]


def measure(library: str, rounds: int, steps: int) -> Figures:
    """Return the figures of one library."""
    runs: Mapping[str, Callable[[int], float]] = importlib.import_module(f"beside.{library}").runs()
    for run in runs.values():
        run(steps // 10)
    best = dict.fromkeys(runs, float("inf"))
    for number in range(rounds):
        names = [*runs][:: 1 if number % 2 else -1]
        for name in names:
            best[name] = min(best[name], runs[name](steps) / steps)
    trainer, adapter = IMPORTS[library]
    return Figures(best, (import_s(trainer), import_s(f"{trainer}; {adapter}")))


def import_s(statements: str) -> float:
    """Return the CPU seconds of a process that imports something."""
    program = f"{statements}; import time; print(time.process_time())"
    command = [sys.executable, "-c", program]
    return statistics.median(float(subprocess.check_output(command, text=True).split()[-1]) for _ in range(3))


def row(library: str, found: Figures) -> str:
    """Return a row of the table."""
    bare, adapter, both = (f"{1e6 * found.steps[name]:.0f} us" for name in ("bare", *GOALS))
    ratios = [f"{found.ratio(name):.2f}" for name in GOALS]
    imports = f"{found.imports[0]:.1f} s, {found.imports[1]:.1f} s"
    return f"| {library} | {bare} | {adapter} | {ratios[0]} | {both} | {ratios[1]} | {imports} |\n"


def main() -> int:
    """Measure, print, and return 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("libraries", nargs="*", metavar="LIBRARY", help=f"of {', '.join(LIBRARIES)}; default: all")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if unknown := {*options.libraries} - {*LIBRARIES}:
        parser.error(f"there is no adapter to {', '.join(sorted(unknown))}, only to {', '.join(LIBRARIES)}")
    found = {library: measure(library, options.rounds, options.steps) for library in options.libraries or LIBRARIES}
    table = HEAD + "".join(row(library, figures) for library, figures in found.items())
    print(table)
    if options.write:
        before, after = (re.escape(mark) for mark in MARKS)
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(re.sub(f"(?s)(?<={before}).*?(?={after})", lambda _: table, page), encoding="utf-8")
    missed = [
        f"{library}: {name} takes {figures.ratio(name):.2f} of the trainer alone, goal {goal}"
        for library, figures in found.items()
        for name, goal in GOALS.items()
        if figures.ratio(name) > goal
    ]
    print("\n".join(missed) or "all goals met")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
