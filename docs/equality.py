"""How equal runs on several processes are: `python docs/equality.py` trains on 2, on 4 and on one, and writes a table.

The cases and their bounds are those of tests/ranks/test_equality.py.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FILE = ROOT / "docs" / "reference" / "equality.md"
HEAD = """# The same run on several processes

How far a run on 2 and on 4 processes is from the same run on one: the largest difference of any weight after two
epochs, and of any number that was logged. `python docs/equality.py` trains the cases of `tests/ranks/test_equality.py`,
a small conv net on 29 images with batches of 8 and a last one of 5, and writes the table. The tests allow {weights} for
weights and {logs} for logs; the numbers are those of one machine. A dash marks what is
trained on 2 processes only: pairs, and what changes only layers or single rows.

| run | weights, 2 | logs, 2 | weights, 4 | logs, 4 |
|---|---|---|---|---|
"""
KINDS = {
    "loop": "{}",
    "alone": "`{}`",
    "sb": "`selective_backprop`: {}",
    "pair": "`selective_backprop` with `{}`",
    "mixed": "`{}`, compared with microbatches of as many rows as a process has",
}


def as_text() -> str:
    """Return the page."""
    test = runpy.run_path(str(ROOT / "tests" / "ranks" / "test_equality.py"))
    sizes: dict[str, list[int]] = {}
    for size, name in test["CASES"]:
        sizes.setdefault(name, []).append(size)
    head = HEAD.format(weights=_number(test["OF_WEIGHTS"]), logs=_number(test["OF_LOGS"]))
    return head + "".join(_row(name, on, test["differences"]) for name, on in sizes.items())


def _row(name: str, sizes: list[int], differences: Any) -> str:
    kind, _, what = name.partition("/")
    cells = [_number(value) for size in sizes for value in differences(size, name)]
    return " | ".join([f"| {KINDS[kind].format(what)}", *cells, *["-"] * (4 - len(cells))]) + " |\n"


def _number(value: float) -> str:
    return f"{value:.0e}".replace("e-0", "e-") if value else "0"


if __name__ == "__main__":
    FILE.write_text(as_text(), encoding="utf-8")
