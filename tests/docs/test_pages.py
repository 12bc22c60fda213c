"""What a page refers to exists, and each page can be reached."""

from __future__ import annotations

import pkgutil
import re
import xml.etree.ElementTree as ET

import pytest

from .conftest import DOCS, PAGES, ROOT, blocks_of, name_of

LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)|^```\{(?:include|literalinclude)\} (\S+)$", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_files_that_a_page_links_to_exist(page):
    targets = [link or included for link, included in LINK.findall(page.read_text(encoding="utf-8"))]
    files = [target for target in targets if not target.startswith(("http://", "https://"))]

    assert [target for target in files if not (page.parent / target).exists()] == []


def test_each_page_is_in_the_table_of_contents():
    pages = [page for page in PAGES if page.is_relative_to(DOCS)]
    listed = [
        page.parent / f"{title or name}.md"
        for page in pages
        for block in blocks_of(page)
        if block.language == "{toctree}"
        for name, title in re.findall(r"^([^<\n]+?)(?: <(\S+)>)?$", block.text, re.MULTILINE)
    ]

    assert sorted(listed) == sorted({*pages} - {DOCS / "index.md"})


@pytest.mark.parametrize("picture", sorted(DOCS.rglob("*.svg")), ids=name_of)
def test_a_picture_says_in_words_what_it_shows(picture):
    root = ET.parse(picture).getroot()

    assert [len(root.findtext(f"{{http://www.w3.org/2000/svg}}{tag}", "")) > 20 for tag in ("title", "desc")] == [
        True
    ] * 2


FRAGMENTS = sorted([*ROOT.glob("changelog.d/+*.md"), *ROOT.glob("plugins/*/changelog.d/+*.md")])
SPEAKING = [
    *(page for page in PAGES if page.name != "CHANGELOG.md"),
    *FRAGMENTS,
    *sorted(ROOT.glob("plugins/*/README.md")),
]


@pytest.mark.parametrize("page", SPEAKING, ids=name_of)
def test_what_a_page_calls_by_its_full_name_exists(page):
    names = set(re.findall(r"(?<![\w.-])engine_core(?:\.\w+)+", page.read_text(encoding="utf-8")))
    # groups of entry points, which no module is named after
    names -= {"engine_core.algorithms", "engine_core.commands", "engine_core.loops"}
    names -= {"engine_core.json", "engine_core.safetensors"}  # files in the checkpoints of other trainers
    names -= {"engine_core.not_finite"}  # a tag of a run in MLflow

    assert [name for name in sorted(names) if not is_there(name)] == []


def is_there(name: str) -> bool:
    """Is this the name of a module, or of something in one?"""
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_mentions_no_particular_machine(page):
    assert re.findall(r"(?<![\w.])/(?:home|root|tmp|opt|work|Users)/\S*", page.read_text(encoding="utf-8")) == []
