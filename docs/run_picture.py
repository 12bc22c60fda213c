"""The picture of a run: `python docs/run_picture.py` trains the example on a terminal and draws images/run.svg.

It is what a person sees in the end: drawings that were erased are left out, colours stay.
"""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree as ET

from rich.console import Console
from rich.text import Text

FILE = Path(__file__).parent / "images" / "run.svg"
COMMAND = "python3 -m engine_core train --example digits"
COLUMNS = 96
HEAD = f"""
  <title>What a run shows on a terminal</title>
  <desc>The output of {COMMAND}: what is trained, each evaluation, the results and where the files are.</desc>"""

_MOVE = re.compile(r"\x1b\[(\d*)A|\x1b\[\d*K|\x1b\[\?\d+[hl]|\r|\n")


def screen() -> str:
    """Run the command on a terminal of its own; return the lines that are left, with their colours."""
    ours, theirs = pty.openpty()
    environment = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR")}
    environment |= {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": "60"}
    with tempfile.TemporaryDirectory() as folder, os.fdopen(ours, "rb", buffering=0) as terminal:
        command = [sys.executable, *COMMAND.split()[1:]]
        run = subprocess.Popen(command, cwd=folder, env=environment, stdout=theirs, stderr=theirs)
        os.close(theirs)
        written = b""
        with contextlib.suppress(OSError):  # Linux's way to say that the other end is closed
            while chunk := terminal.read(4096):
                written += chunk
        if run.wait():
            raise RuntimeError(f"{COMMAND} ended with {run.returncode}: {written.decode()}")
    return left_of(written.decode().replace("\r\n", "\n"))


def left_of(written: str) -> str:
    """Return the lines that are left on a terminal when returns, erasures and moves up are obeyed."""
    rows, row, at = [""], 0, 0
    for move in _MOVE.finditer(written):
        rows[row] += written[at : move.start()]
        at = move.end()
        if move[0] == "\n":
            row += 1
            rows += [""] * (row + 1 - len(rows))
        elif move[0].endswith("A"):
            row = max(0, row - int(move[1] or 1))
        elif not move[0].endswith(("h", "l")):
            rows[row] = ""  # what is written after a return, or an erasure, replaces the line
    rows[row] += written[at:]
    return "\n".join(rows).rstrip()


def as_svg(shown: str) -> str:
    """Return the picture of what is left on a screen; it needs no font from elsewhere."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), legacy_windows=False)
    console.print(Text.from_ansi(shown), overflow="fold")
    svg = re.sub(r"@font-face \{.*?\}\s*", "", console.export_svg(title=COMMAND, unique_id="run"), flags=re.DOTALL)
    return re.sub(r"(<svg [^>]*>)", lambda tag: tag[1] + HEAD, svg, count=1)


def lines_in(svg: str) -> list[str]:
    """Return the lines of text in a picture, from the top."""
    rows: dict[float, list[tuple[float, str]]] = {}
    for text in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text"):  # noqa: S314  our own
        if "clip-path" in text.attrib:  # not the title of the window
            rows.setdefault(float(text.attrib["y"]), []).append((float(text.attrib["x"]), text.text or ""))
    return [
        "".join(part for _, part in sorted(parts)).replace("\xa0", " ").rstrip() for _, parts in sorted(rows.items())
    ]


if __name__ == "__main__":
    FILE.write_text(as_svg(screen()), encoding="utf-8")
