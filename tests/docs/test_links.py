"""The link checker finds what leads nowhere, and links in Markdown lead to headings that exist."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from .conftest import DOCS, PAGES, ROOT, name_of

BROKEN_IN = runpy.run_path(str(DOCS / "links.py"))["broken_in"]
READMES = sorted(ROOT.glob("plugins/*/README.md"))
LINK = re.compile(r"\]\(([^)\s]*?)#([\w-]+)\)")


def test_a_link_to_no_file_and_one_to_no_place_are_found(tmp_path):
    (tmp_path / "page.html").write_text('<a href="other.html#there">\n<a href="gone.html">\n<a href="other.html#not">')
    (tmp_path / "other.html").write_text('<p id="there"><a href="#there"><a href="https://example.com/gone">')

    assert BROKEN_IN(tmp_path) == [
        "page.html:2: gone.html: there is no such file",
        "page.html:3: other.html#not: other.html has no such place",
    ]


@pytest.mark.parametrize("page", [*PAGES, *READMES], ids=name_of)
def test_the_heading_that_a_link_leads_to_exists(page):
    """As on GitHub, where no build checks it; names of Python objects and explicit targets are Sphinx's."""
    links = [(page.parent / path if path else page, place) for path, place in LINK.findall(text_of(page))]
    headings = [(f"{target.name}#{place}", places_in(target)) for target, place in links if target.suffix == ".md"]

    assert [link for link, places in headings if link.partition("#")[2] not in places] == []


def places_in(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings, and the targets `(name)=` before some."""
    titles = re.findall(r"^#+ (.+)$", text_of(page), re.MULTILINE)
    slugs = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
    return {*slugs, *re.findall(r"^\((.+)\)=$", text_of(page), re.MULTILINE)}


def text_of(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
