"""Tables of notebooks, taken apart as a browser does it."""

from html.parser import HTMLParser


class Tables(HTMLParser):
    """The cells of each row, and the tags."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.tags, self._is_cell = [], set(), False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        assert not attrs
        if tag in ("tr", "caption"):
            self.rows.append([])
        self._is_cell = tag in ("td", "th", "caption")
        if self._is_cell:
            self.rows[-1].append("")

    @property
    def text(self):
        return "".join("".join(row) for row in self.rows)

    def handle_endtag(self, tag):
        self._is_cell = False

    def handle_data(self, data):
        if self._is_cell:
            self.rows[-1][-1] += data
