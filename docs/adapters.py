"""How algorithms do in the trainers of other libraries: `python docs/adapters.py [LIBRARY...]` trains them, and writes.

The cells are those of tests/beside, which compares each with the same run in our Trainer.
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

from engine_core.needs import EVERYTHING, Offers
from engine_core.registry import Registry

ROOT = Path(__file__).parents[1]
FILE = ROOT / "docs" / "reference" / "trainers.md"
LIBRARIES = {"lightning": "Lightning", "transformers": "Hugging Face's Trainer", "accelerate": "Accelerate"}
HEADS = {"step": "a step", "black box": "a step that is a black box", "accumulation": "gradient accumulation"}
"""What each setting of tests/beside is called."""
EXTRA = {
    "none": "no algorithm",
    "carried": '`selective_backprop` with `scorer="carried"`',
    "together": "`selective_backprop`, `label_smoothing` and `ema` together",
}
"""The cases that are not one algorithm each."""


def section(library: str, runs: Any) -> str:
    """Return what the page says of one library.

    Args:
        runs: the module of tests/beside that trains with it.
    """
    offers: Offers = Registry.scan().load("loops", library)
    reasons: list[str] = []
    rows = []
    for case in [*importlib.import_module(f"{runs.__package__}.cases").ALONE, *EXTRA]:
        cells = [_cell(runs.cell(setting, case), reasons) for setting in runs.SETTINGS]
        rows.append(" | ".join([f"| {EXTRA.get(case, f'`{case}`')}", *cells]) + " |\n")
    head = " | ".join(["| algorithm", *(HEADS[setting] for setting in runs.SETTINGS)]) + " |\n"
    rule = "|---" * (len(runs.SETTINGS) + 1) + "|\n"
    numbered = "".join(f"{number}. {reason}\n" for number, reason in enumerate(reasons, 1))
    listed = f"\n{numbered}" if numbered else ""
    return f"\n## {LIBRARIES[library]}\n\n{head}{rule}{''.join(rows)}{listed}\n{_lacks(offers)}\n"


def _cell(found: str, reasons: list[str]) -> str:
    """Return a cell of the table, and note its reasons."""
    kind, _, why = found.partition(": ")
    if not why:
        return kind
    whys = _refusals(why) if kind == "refused" else [why]
    reasons += [one for one in whys if one not in reasons]
    return f"{kind} ({', '.join(str(reasons.index(one) + 1) for one in whys)})"


def _refusals(message: str) -> list[str]:
    """Return the reasons in an error, each once, without who is refused and what it needs, which is said elsewhere."""
    lines = [re.sub(r"^.*? can't work in .+?: (?=no )", "", line) for line in message.splitlines()]
    parts = [part for line in lines if line.startswith("no ") for part in re.split(r"; (?=no [\w, ]+: )", line)]
    return [*dict.fromkeys(part.partition(": ")[2] for part in parts)]


def _lacks(offers: Offers) -> str:
    """Return what a loop never offers, by reason."""
    there: set[Any] = {*offers.events, *offers.writes, *offers.gives}
    missing: dict[str, list[str]] = {}
    for what in (*EVERYTHING.events, *EVERYTHING.writes, *EVERYTHING.gives):
        if what not in there:
            name = str(getattr(what, "value", what))
            missing.setdefault(offers.why.get(name, ""), []).append(f"`{name}`")
    lines = [
        f"- {', '.join(sorted(names))}: {why}\n" for why, names in sorted(missing.items(), key=lambda m: sorted(m[1]))
    ]
    return "Not offered by default:\n\n" + "".join(lines)


def marked(library: str) -> re.Pattern[str]:
    """Return what finds the section of one library in the page."""
    return re.compile(f"(?s)(?<=<!-- {library} -->\n).*?(?=<!-- /{library} -->)")


def main(libraries: list[str]) -> None:
    """Write the sections of these libraries, or of all."""
    sys.path.insert(0, str(ROOT / "tests"))
    for library in libraries or LIBRARIES:
        runs = importlib.import_module(f"beside.{library}_runs")
        before, after = marked(library).split(FILE.read_text("utf-8"))
        FILE.write_text(f"{before}{section(library, runs)}{after}", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
