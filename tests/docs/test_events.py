"""Each event has a specification, a heading in the docs and a test, all under its value."""

from __future__ import annotations

import re

from engine_core import Event

from .conftest import DOCS, ROOT

PAGE = (DOCS / "reference" / "events.md").read_text(encoding="utf-8")
TESTS = "\n".join(
    file.read_text(encoding="utf-8") for file in sorted(ROOT.glob("tests/**/*.py")) if file.parent.name != "docs"
)
VALUES = [event.value for event in Event]


def test_the_events_are_headings_in_the_order_in_which_they_fire_each_with_its_own_specification():
    shown = re.findall(r"^## (\w+)\n\n```\{hook\} (\w+)\n```$", PAGE, re.MULTILINE)

    assert [heading for heading in re.findall(r"^## (\w+)$", PAGE, re.MULTILINE) if heading != "Pairs"] == VALUES
    assert shown == list(zip(VALUES, VALUES, strict=True))


def test_the_loop_shows_each_event_once_and_no_other():
    loop = PAGE[PAGE.index("```text") : PAGE.index("## What runs")]
    figure = re.sub(r"\(.*?\)", "", loop[: loop.index("\n```\n")])

    assert sorted(re.findall(r"[a-z]+_[a-z_]+|\binit\b", figure)) == sorted(VALUES)


def test_each_event_appears_in_a_test():
    assert [event for event in VALUES if not re.search(rf"\b({event}|{event.upper()})\b", TESTS)] == []
