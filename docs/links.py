"""Check the links of the built pages: `python docs/links.py FOLDER`. It needs no network, so it follows none to others.

A link or a picture has to lead to a file in the folder, and what follows its `#` to an `id` in that file.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links of a page with their lines, and what can be linked to in it."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links: list[tuple[int, str]] = []
        self.ids: set[str] = set()
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" or (name == "name" and tag == "a"):
                self.ids.add(value or "")
            elif name in ("href", "src") and value is not None:
                self.links.append((self.getpos()[0], value))


def broken_in(folder: Path) -> list[str]:
    """Return what is wrong with the links of the HTML files in a folder, each with its file and line."""
    pages = {file.resolve(): Page(file) for file in sorted(folder.rglob("*.html"))}
    found = []
    for file, page in pages.items():
        for line, link in page.links:
            url = urlsplit(link)
            if not url.scheme and not url.netloc and (why := _wrong_with(url.path, url.fragment, file, pages)):
                found.append(f"{file.relative_to(folder.resolve())}:{line}: {link}: {why}")
    return found


def _wrong_with(path: str, fragment: str, file: Path, pages: dict[Path, Page]) -> str:
    target = (file.parent / unquote(path)).resolve() if path else file
    if not target.is_file():
        return "there is no such file"
    if fragment and target in pages and unquote(fragment) not in pages[target].ids:
        return f"{target.name} has no such place"
    return ""


if __name__ == "__main__":
    built = Path(sys.argv[1])
    broken = broken_in(built)
    print("\n".join([*broken, f"{len(broken)} broken links in {len(list(built.rglob('*.html')))} pages"]))
    sys.exit(bool(broken))
