"""Pages of reports, taken apart as a browser does it."""

import json
from html.parser import HTMLParser

from engine_core_report import read_run, render


class Page(HTMLParser):
    """A page taken apart as a browser does it."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.texts, self.scripts, self._inside = [], [], [], ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside == "script":
            self.scripts[-1] += data
        else:
            self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())

    @property
    def ids(self):
        return [attributes["id"] for _, attributes in self.elements if "id" in attributes]

    @property
    def data(self):
        return json.loads(self.scripts[0])


def page_of(*folders):
    return Page(render([read_run(folder) for folder in folders]))


def lines_of(page):
    return {line["name"]: line for chart in page.data["charts"] for line in chart["lines"]}
