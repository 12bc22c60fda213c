"""What the README promises a newcomer."""

from __future__ import annotations

import re
from pathlib import Path

from .conftest import DOCS, ROOT, blocks_of

README = ROOT / "README.md"
TEXT = README.read_text(encoding="utf-8")


def test_quick_start_is_two_commands_in_one_block():
    section = TEXT[TEXT.index("## Quick start") : TEXT.index("## An algorithm")]
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    train = "python3 -m engine_core train --example digits"
    install = 'python3 -m pip install -c constraints.txt ".[examples]" ./plugins/sb-plugin'
    test = "python3 -m pip install -c constraints.txt tox && python3 -m tox run-parallel"

    assert fences == [("sh", f"{install} && {train}\n{test}\n")]


def test_the_tutorial_has_the_same_two_commands():
    assert first(DOCS / "quickstart.md", "sh") == first(README, "sh")


def test_the_front_page_has_the_first_of_them():
    assert first(DOCS / "index.md", "sh") == first(README, "sh").splitlines(keepends=True)[0]


def test_an_algorithm_in_ten_lines_is_as_short_as_that_and_the_same_in_both_places():
    shown = first(README, "python")

    assert len([line for line in shown.splitlines() if line]) <= 10
    assert first(DOCS / "authors" / "algorithm.md", "python") == shown


def first(page: Path, language: str) -> str:
    """Return the first block of a language in a page."""
    return next(block.text for block in blocks_of(page) if block.language == language)


def test_what_it_is_takes_three_sentences():
    said = TEXT.partition("<!-- what -->")[2].partition("<!-- /what -->")[0]

    assert len(re.findall(r"[.!?](?=\s)", said)) == 3
