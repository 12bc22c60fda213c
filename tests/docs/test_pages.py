"""What a page refers to exists, also where a link leads to a heading, and each page can be reached."""

import functools
import pkgutil
import re
import runpy
import xml.etree.ElementTree as ET

from .conftest import DOCS, PAGES, ROOT, blocks_of

LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)|^```\{(?:include|literalinclude)\} (\S+)$", re.MULTILINE)


def test_the_files_that_pages_link_to_exist_and_no_particular_machine_is_mentioned():
    texts = {page: page.read_text(encoding="utf-8") for page in PAGES}
    targets = [(page, link or included) for page, text in texts.items() for link, included in LINK.findall(text)]
    files = [(page, target) for page, target in targets if not target.startswith(("http://", "https://"))]
    machines = re.compile(r"(?<![\w.])/(?:home|root|tmp|opt|work|Users)/\S*")
    assert [(page.name, target) for page, target in files if not (page.parent / target).exists()] == []
    assert [(page.name, found) for page, text in texts.items() for found in machines.findall(text)] == []


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


def test_a_picture_says_in_words_what_it_shows():
    for picture in sorted(DOCS.rglob("*.svg")):
        root = ET.parse(picture).getroot()
        words = [root.findtext(f"{{http://www.w3.org/2000/svg}}{tag}", "") for tag in ("title", "desc")]
        assert [len(text) > 20 for text in words] == [True, True], picture


FRAGMENTS = sorted([*ROOT.glob("changelog.d/+*.md"), *ROOT.glob("plugins/*/changelog.d/+*.md")])
SPEAKING = [
    *(page for page in PAGES if page.name != "CHANGELOG.md"),
    *FRAGMENTS,
    *sorted(ROOT.glob("plugins/*/README.md")),
]


def test_what_a_page_calls_by_its_full_name_exists():
    texts = [page.read_text(encoding="utf-8") for page in SPEAKING]
    names = {name for text in texts for name in re.findall(r"(?<![\w.-])engine_core(?:\.\w+)+", text)}
    groups = ("algorithms", "commands", "loops", "recipes")
    names -= {f"engine_core.{group}" for group in groups}  # entry points, no modules
    names -= {"engine_core.json", "engine_core.safetensors"}  # files in the checkpoints of other trainers
    names -= {"engine_core.not_finite"}  # a tag of a run in MLflow
    assert [name for name in sorted(names) if not is_there(name)] == []


def is_there(name):
    """Is this the name of a module, or of something in one?"""
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


BROKEN_IN = runpy.run_path(str(DOCS / "links.py"))["broken_in"]
READMES = sorted(ROOT.glob("plugins/*/README.md"))
TO_A_HEADING = re.compile(r"\]\(([^)\s]*?)#([\w-]+)\)")


def test_a_link_to_no_file_and_one_to_no_place_are_found(tmp_path):
    (tmp_path / "page.html").write_text('<a href="other.html#there">\n<a href="gone.html">\n<a href="other.html#not">')
    (tmp_path / "other.html").write_text('<p id="there"><a href="#there"><a href="https://example.com/gone">')
    assert BROKEN_IN(tmp_path) == [
        "page.html:2: gone.html: there is no such file",
        "page.html:3: other.html#not: other.html has no such place",
    ]


def test_the_heading_that_a_link_leads_to_exists():
    """As on GitHub, where no build checks it; names of Python objects and explicit targets are Sphinx's."""
    pages = [*PAGES, *READMES]
    links = [
        (page.parent / path if path else page, place)
        for page in pages
        for path, place in TO_A_HEADING.findall(text_of(page))
    ]
    assert [
        (target.name, place) for target, place in links if target.suffix == ".md" and place not in places_in(target)
    ] == []


@functools.cache
def places_in(page):
    """Return the anchors that GitHub makes of a page's headings, and the targets `(name)=` before some."""
    titles = re.findall(r"^#+ (.+)$", text_of(page), re.MULTILINE)
    slugs = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
    return {*slugs, *re.findall(r"^\((.+)\)=$", text_of(page), re.MULTILINE)}


def text_of(page):
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
