"""A pseudo-terminal in this process, and what a person would see on it in the end."""

import contextlib
import itertools
import os
import re
import threading

import pytest

SEQUENCE = re.compile(r"\x1b\[(\??[\d;]*)([A-Za-z])")


class Screen:
    """What was written to a terminal."""

    def __init__(self):
        self.written = ""

    def drawings(self):
        """Return what was written and drawn, one after the other, without bars and without repetitions in a row."""
        parts = [line for part in self.written.split("\r\x1b[2K") for line in SEQUENCE.sub("", part).split("\n")]
        texts = [re.sub(r"  [━╸╺ ]+  ", "  ", part).strip() for part in parts]
        return [text for text, _ in itertools.groupby(filter(None, texts))]

    def lines(self):
        """Return the lines that are left when cursor movements and erasures are obeyed; colours are dropped."""
        rows, row, column, at = [""], 0, 0, 0
        while at < len(self.written):
            if found := SEQUENCE.match(self.written, at):
                at = found.end()
                count = int(found[1]) if found[1].isdigit() else 1
                if found[2] == "A":
                    row = max(0, row - count)
                elif found[2] == "K":
                    rows[row] = ""
                continue
            character, at = self.written[at], at + 1
            if character == "\r":
                column = 0
            elif character == "\n":
                row, column = row + 1, 0
                rows += [""] * (row + 1 - len(rows))
            else:
                rows[row] = rows[row].ljust(column)[:column] + character + rows[row][column + 1 :]
                column += 1
        return [row.rstrip() for row in rows]


@contextlib.contextmanager
def terminal(patch, columns=80, stream="stderr", **environment):
    """Make a stream a terminal this wide; afterwards the screen has what was written."""
    pty = pytest.importorskip("pty", reason="pseudo-terminals are POSIX's")
    ours, theirs = pty.openpty()
    chunks = []

    def read():
        with contextlib.suppress(OSError):  # Linux's way to say that the other end is closed
            while chunk := os.read(ours, 4096):
                chunks.append(chunk)

    reader = threading.Thread(target=read)
    reader.start()
    screen = Screen()
    with patch.context() as inner:
        for name, value in {"TERM": "xterm", "COLUMNS": str(columns), **environment}.items():
            inner.setenv(name, value)
        with os.fdopen(theirs, "w", encoding="utf-8") as file:
            inner.setattr(f"sys.{stream}", file)
            yield screen
    reader.join(timeout=10)
    os.close(ours)
    screen.written = b"".join(chunks).decode().replace("\r\n", "\n")
