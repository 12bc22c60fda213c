"""The outputs that the pages show: `python docs/outputs.py [--write] [PAGE...]` compares them with what is printed now.

What follows a prompt in a `console` block is the whole output, stdout and stderr as on a terminal of 80 columns. A line
that is only `...` stands for any number of lines. The commands of a page run one after the other in one folder, where
the files lie that the page shows under a caption. `--write` puts in what was printed where the two differ.

Not compared are the numbers of versions, the date in the name of a run's folder, and the width of columns, which
follows them. Of a command in MEASURED neither are decimal numbers, times such as 0:12, and samples/s; which of these
numbers is the best (`*`, and `epoch 5, batch 115` behind it); and lines of progress, of which a slow machine has more.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import shlex
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import importlib_metadata
from click.testing import CliRunner

from engine_core.cli import main
from engine_core.registry import Registry

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("plugins/*/README.md")])

OURS = re.compile(r"(?:engine-core|python3? -m engine_core) +(?P<arguments>.*)", re.DOTALL)
MEASURED = re.compile(r"train\b|eval\b|plugins doctor\b")
"""The commands that print what they measure."""

INSTALLED = {"docs/quickstart.md": {"engine-core", "engine-core-report", "sb-plugin"}}
"""The distributions that the reader of a page has; elsewhere all of this repository."""

NOT_COMPARED = {
    ("docs/howto/resume.md", "interrupted at batch"): "it takes a signal, see tests/train/test_endings.py",
    ("docs/howto/screen.md", "model  "): "an excerpt of what docs/quickstart.md shows",
    ("docs/howto/screen.md", "epoch 1/10"): "an excerpt of what docs/quickstart.md shows",
    ("docs/howto/screen.md", "results\n"): "an excerpt of what docs/quickstart.md shows",
    ("docs/howto/screen.md", "epoch 4/10"): "a line that a run shorter than 30 seconds does not print",
    ("docs/howto/scale.md", "engine_core.errors.RankError"): "it takes processes, see tests/ranks/test_failures.py",
    ("docs/howto/scale.md", "ArgumentError: the ranks"): "it takes processes, see tests/ranks/test_endings.py",
    ("plugins/surgery-plugin/README.md", "surgery  ->"): "an order, see plugins/surgery-plugin/tests/test_compile.py",
    ("docs/howto/wrong.md", "out of memory"): "it takes a GPU whose memory runs out",
    ("docs/recipes.md", "[project]"): "a part of a package's pyproject.toml",
    ("docs/studies.md", "eval/loss, lower is better"): "twenty runs, trained for it",
    ("docs/howto/compare.md", "      "): "four runs, trained for it; see test_runs_command.py of engine-core-report",
    ("docs/howto/plugins.md", "$ engine-core plugins doctor"): "its faulty plugins are not installed",
    ("docs/authors/publishing.md", "FutureWarning: MyCallback"): "nothing is deprecated at present",
    ("docs/authors/new.md", "mkdir -p .wheels"): "commands, which tests/author runs",
    ("docs/authors/package.md", "gradient-centralization/"): "a tree of files, which tests/docs/test_package.py builds",
    ("docs/explanation/design.md", "engine_core/"): "a tree of files, see tests/docs/test_design.py",
    ("docs/explanation/design.md", "plugins/"): "a tree of files, see tests/docs/test_design.py",
    ("docs/reference/events.md", "init "): "a figure, see tests/docs/test_reference.py",
    ("plugins/sb-plugin/README.md", "def make_loader"): "code that lacks a dataset",
}
"""Why a `text` block is not compared, by its page and its beginning; each has to be here."""

_BLOCK = re.compile(r"^(`{3,})(console|text)\n(.*?)^\1 *$", re.MULTILINE | re.DOTALL)
_CAPTIONED = re.compile(r"^(`{3,})\{code-block\} \w+\n:caption: (\S+)\n\n(.*?)^\1 *$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)


class Shown(NamedTuple):
    """A command in a page, the output that the page shows, and where in the page's text that begins."""

    command: str
    output: str
    start: int

    @property
    def name(self) -> str:
        """The command in one line."""
        return " ".join(self.command.replace("\\\n", " ").split())


def shown_in(text: str) -> list[Shown]:
    """Return the commands of a page's text that are shown with an output."""
    found = []
    for block in _BLOCK.finditer(text):
        if block[2] == "console":
            commands = _COMMAND.finditer(block[3])
            found += [Shown(command[1], command[2], block.start(3) + command.start(2)) for command in commands]
    return [shown for shown in found if shown.output]


def text_blocks(page: Path) -> list[tuple[str, str]]:
    """Return name and text of each `text` block, none of which is compared."""
    blocks = _BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [(page.relative_to(ROOT).as_posix(), block[3]) for block in blocks if block[2] == "text"]


def printed_by(page: Path, folder: Path) -> Iterator[tuple[Shown, str]]:
    """Run the commands of a page in a folder; yield what the page shows of each, and what it prints.

    Raises:
        ValueError: if a command is not engine-core's, or fails.
    """
    text = page.read_text(encoding="utf-8")
    for _, name, content in _CAPTIONED.findall(text):
        if Path(name).name == name:
            (folder / name).write_text(content, encoding="utf-8")
    with _as_a_process(folder), _installed(INSTALLED.get(page.relative_to(ROOT).as_posix())):
        for shown in shown_in(text):
            ours = OURS.fullmatch(shown.name)
            if ours is None:
                raise ValueError(f"{page.name} shows the output of {shown.name!r}, which can't be compared")
            named = {"prog_name": "engine-core", "terminal_width": 78}
            done = CliRunner(env={"COLUMNS": "80"}).invoke(main, shlex.split(ours["arguments"]), **named)
            if done.exit_code:
                raise ValueError(f"{page.name}: {shown.name!r} ended with {done.exit_code}: {done.output}")
            yield shown, done.output


@contextlib.contextmanager
def _as_a_process(folder: Path) -> Iterator[None]:
    """Run in a folder, and forget the modules in it, as pages have modules of the same names."""
    before, path, modules = Path.cwd(), sys.path.copy(), set(sys.modules)
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # they are shown, not raised
        try:
            os.chdir(folder)
            yield
        finally:
            os.chdir(before)
            sys.path[:] = path
            for name in set(sys.modules) - modules:
                file = getattr(sys.modules[name], "__file__", None)
                if file and Path(file).is_relative_to(folder):
                    del sys.modules[name]


@contextlib.contextmanager
def _installed(names: set[str] | None) -> Iterator[None]:
    """Let the registry find only these distributions."""
    everything = importlib_metadata.distributions
    if names is None:
        yield
        return
    importlib_metadata.distributions = lambda: (d for d in everything() if d.metadata["Name"] in names)
    try:
        Registry.scan(refresh=True)
        yield
    finally:
        importlib_metadata.distributions = everything
        Registry.scan(refresh=True)


def normal(output: str, command: str) -> list[str]:
    """Return the lines of an output without what may differ; see the head of this file."""
    output = re.sub(r"\b\d+\.\d+\.\d+(?!\.?\d)\S*", "<version>", output)
    output = re.sub(r"\b\d{8}-\d{6}-[0-9a-f]{4}\b", "<date>", output)
    ours = OURS.fullmatch(command)
    if ours and MEASURED.match(ours["arguments"]):
        output = re.sub(r"\b\d+:\d\d(:\d\d)?\b", "<time>", output)
        output = re.sub(r"^.*  \d+%(  .*)?\n", "", output, flags=re.MULTILINE)
        output = re.sub(r"(?<=samples/s )[ │]*[\d,]+|[\d,]+(?= samples/s)", "<number>", output)
        output = re.sub(r"-?\b\d+(\.\d+(e[-+]?\d+)?|e[-+]?\d+)\*?", "<number>", output)
        output = re.sub(r"(best +<number>[ │]+)epoch [\d,]+, batch [\d,]+", r"\1<place>", output)
    return [" ".join(re.sub("─+", "─", line).split()) for line in output.splitlines() if line.strip()]


def differences(shown: Shown, printed: str) -> str:
    """Return in a diff how the output differs from the one shown, or nothing."""
    want, got = normal(shown.output, shown.name), normal(printed, shown.name)
    pattern = "".join(r"(?:.*\n)*" if line == "..." else re.escape(line) + r"\n" for line in want)
    if re.fullmatch(pattern, "".join(f"{line}\n" for line in got)):
        return ""
    return "\n".join(difflib.unified_diff(want, got, "the page", shown.name, lineterm=""))


def rewritten(page: Path, outputs: list[tuple[Shown, str]]) -> str:
    """Return a page's text with the outputs that differ as they are now.

    Raises:
        ValueError: if one is shown with lines left out: which ones now is not for a program to say.
    """
    text = page.read_text(encoding="utf-8")
    for shown, printed in reversed(outputs):
        if differences(shown, printed):
            if "\n...\n" in f"\n{shown.output}":
                raise ValueError(f"{page.name}: {shown.name!r} is shown with lines left out; mend it by hand")
            end = shown.start + len(shown.output)
            text = text[: shown.start] + printed.rstrip("\n") + "\n" + text[end:]
    return text


def run(pages: list[Path], *, write: bool) -> bool:
    """Compare the pages, or rewrite them; say what differs, and return whether something does."""
    differs = False
    for page in pages:
        with tempfile.TemporaryDirectory() as folder:
            outputs = list(printed_by(page, Path(folder)))
        for shown, printed in outputs:
            if difference := differences(shown, printed):
                differs = True
                print(f"{page.relative_to(ROOT)}: {shown.name}\n{difference}")
        if write:
            page.write_text(rewritten(page, outputs), encoding="utf-8")
    return differs


if __name__ == "__main__":
    chosen = [argument for argument in sys.argv[1:] if argument != "--write"]
    sys.exit(run([Path(page).resolve() for page in chosen] or PAGES, write="--write" in sys.argv))
