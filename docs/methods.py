"""The table of methods: `python docs/methods.py` puts the figures of the digits' study into it.

Each algorithm of the digits' study has a row; in which case it can gain is written there by hand, and stays.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from engine_core.registry import Registry

DOCS = Path(__file__).parent
STUDIES = DOCS.parent / "benchmarks" / "studies"
PAGE, STUDY = STUDIES / "methods.md", STUDIES / "digits.md"
ROW = re.compile(r"^\| \[`(?P<name>\w+)`\]\(.*?\) \| .*? \| .*? \| (?P<when>.*?) \|$", re.MULTILINE)


class Measured(NamedTuple):
    """What the study says of an arm: its test accuracy, and the time of its training, relative to plain training."""

    name: str
    words: str
    time: str
    interval: str

    def sentence(self) -> str:
        """Return what the README of the algorithm's package says of it."""
        return (
            f"Of the test accuracy it says: {self.words}. Training takes {self.time} times as long ({self.interval})."
        )


def as_markdown() -> str:
    """Return the page, with the figures of the study."""
    page = PAGE.read_text(encoding="utf-8")
    when = {found["name"]: found["when"] for found in ROW.finditer(page)}
    names = {record.name: record.distribution for record in Registry.scan().records_of("algorithms")}
    rows = [
        f"| [`{name}`]({_section(name, names[name])}) | {words} | {time} ({interval}) | {when.get(name, '')} |"
        for name, words, time, interval in measured()
        if name in names
    ]
    head, _, _ = page.partition("| algorithm |")
    columns = "| algorithm | test accuracy | time | where it can gain |"
    return "\n".join([f"{head}{columns}", "|---|---|---|---|", *rows, ""])


def measured() -> list[Measured]:
    """Return what the study found, an arm after the other."""
    table, _, _ = STUDY.read_text(encoding="utf-8").partition("**test/loss")
    found = re.findall(r"^\| (\w+) \| .*? \| (.*?) \| (?:~ )?x (\S+) \((.*?)\)", table, re.MULTILINE)
    return [Measured(*cells) for cells in found]


def _section(name: str, distribution: str) -> str:
    """Return the link to the heading above `Registered as`, in the README of the algorithm's package."""
    text = (DOCS.parent / "plugins" / distribution / "README.md").read_text(encoding="utf-8")
    before, found, _ = text.partition(f"Registered as `{name}`")
    heading = re.findall(r"^#+ (.+)$", before, re.MULTILINE)[-1] if found else ""
    return f"../../plugins/{distribution}/README.md" + (f"#{heading.lower().replace(' ', '-')}" if heading else "")


if __name__ == "__main__":
    PAGE.write_text(as_markdown(), encoding="utf-8")
