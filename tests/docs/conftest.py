"""The pages that the tests keep true, and the fenced blocks in them."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])

_FENCE = re.compile(r"^(?P<ticks>`{3,})(?P<info>[^\n`]*)\n(?P<text>.*?)^(?P=ticks) *$", re.MULTILINE | re.DOTALL)
_OPTION = re.compile(r":(\w[\w-]*): ?(.*)\n")


class Block(NamedTuple):
    """A fenced block: the language, the options of a directive such as its caption, the text and its first line."""

    language: str
    options: dict[str, str]
    text: str
    line: int


def blocks_of(page):
    """Return the fenced blocks of a page in order; that of a directive `{code-block} toml` is of language toml."""
    source, found = page.read_text(encoding="utf-8"), []
    for fence in _FENCE.finditer(source):
        text, start, options = fence["text"], fence.start("text"), {}
        if fence["info"].startswith("{"):
            while option := _OPTION.match(text):
                options[option[1]] = option[2]
                start += option.end()
                text = text[option.end() :]
            start += len(text) - len(text.lstrip("\n"))
            text = text.lstrip("\n")
        language = fence["info"].removeprefix("{code-block}").strip()
        found.append(Block(language, options, text, source.count("\n", 0, start) + 1))
    return found


def name_of(page):
    """Return a page's path from the root, for a test's id."""
    return page.relative_to(ROOT).as_posix()
