"""Every command in README and docs exists, and prints what the page shows."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
from typing import NamedTuple

import click
import pytest

from engine_core.cli import main

from .conftest import DOCS, PAGES, ROOT, blocks_of, name_of

SHELLS = ("console", "sh", "shell", "bash")
OURS = (["engine-core"], ["python3", "-m", "engine_core"], ["python", "-m", "engine_core"])


class Command(NamedTuple):
    """A command in a page, the part of a line between two `&&`, and the lines it is shown to print."""

    words: list[str]
    printed: list[str]

    @property
    def ours(self) -> list[str] | None:
        """The arguments if it is engine-core's."""
        return next((self.words[len(name) :] for name in OURS if self.words[: len(name)] == name), None)


def commands_of(page) -> list[Command]:
    """Return the commands of a page: those after a prompt, with their output, and each line of a block without one."""
    found = []
    for block in blocks_of(page):
        prompted = block.language == "console" and block.text.startswith("$ ")
        if block.language in SHELLS:
            for line in block.text.replace("\\\n", " ").splitlines():
                if not prompted or line.startswith("$ "):
                    parts = line.removeprefix("$ ").split(" && ")
                    found += [Command(shlex.split(part, comments=True), []) for part in parts if part]
                elif line:
                    found[-1].printed.append(line)
    return found


def shown() -> list:
    """Return each command with its page as a test's parameters."""
    return [
        pytest.param(page, command, id=f"{name_of(page)}: {shlex.join(command.words)}")
        for page in PAGES
        for command in commands_of(page)
    ]


@pytest.mark.parametrize(("page", "command"), shown())
def test_the_command_exists_with_these_options(page, command):
    if command.ours is not None:
        parse(main, command.ours)
    for word in command.words:
        path = word.removeprefix("./").partition("[")[0]
        if ("/" in path or path.endswith(".txt")) and not path.startswith(".venv"):
            assert (ROOT / path).exists(), f"{word} is not a path in the repository"
    if "tox" in command.words and "-e" in command.words:
        assert is_environment(command.words[command.words.index("-e") + 1])
    if "tox" in command.words and "-m" in command.words[command.words.index("tox") :]:
        assert f"\n    {command.words[-1]} = " in (ROOT / "tox.ini").read_text(encoding="utf-8")


def parse(command: click.Command, arguments: list[str]) -> None:
    """Parse as click does, without running anything."""
    context = click.Context(command, info_name="engine-core")
    while isinstance(command, click.Group):
        name, command, arguments = command.resolve_command(context, arguments)
        context = click.Context(command, parent=context, info_name=name)
    with contextlib.suppress(click.exceptions.Exit):  # --help
        command.make_context(context.info_name, list(arguments), parent=context.parent)


def is_environment(name: str) -> bool:
    """Is it a section of tox.ini, or one of its matrix?"""
    matrix = r"py31[0-3]-(lowest|latest|full)"
    return (
        f"[testenv:{name}]" in (ROOT / "tox.ini").read_text(encoding="utf-8") or re.fullmatch(matrix, name) is not None
    )


@pytest.mark.full
@pytest.mark.parametrize("page", [p for p in PAGES if any(c.printed for c in commands_of(p))], ids=name_of)
def test_the_commands_of_a_page_print_what_it_shows(page, tmp_path):
    for block in blocks_of(page):
        if "caption" in block.options and block.text:
            (tmp_path / block.options["caption"]).write_text(block.text, encoding="utf-8")
    for command in commands_of(page):
        if command.printed:
            assert command.ours is not None, f"{command.words} shows an output that is not checked"
            # torch's first import, without bytecode, may take longer than the doctor's own limit.
            patient = ["--timeout", "300"] if command.ours == ["plugins", "doctor"] else []
            done = subprocess.run(
                [sys.executable, "-W", "error", "-m", "engine_core", *command.ours, *patient],
                cwd=tmp_path,
                env={**os.environ, "COLUMNS": "80"},
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            printed = iter(map(normal, done.stdout.splitlines()))
            missing = [line for line in map(normal, command.printed) if line not in printed]
            assert not missing, f"{shlex.join(command.words)} does not print, in this order: {missing}\n{done.stdout}"


@pytest.mark.full
def test_the_example_ends_with_the_table_that_the_tutorial_shows(tmp_path):
    page = DOCS / "quickstart.md"
    shown = table(next(block.text for block in blocks_of(page) if block.language == "text"))
    command = [sys.executable, "-m", "engine_core", "train", "--example", "digits", "--out", "run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    printed = table(done.stdout)

    assert list(shown) == list(printed)
    same = ("trained", "SelectiveBackprop/INIT", "SelectiveBackprop/AFTER_DATALOADER", "selective_backprop/kept")
    assert {name: shown[name] for name in same} == {name: printed[name] for name in same}
    pruned, batches = printed[same[2]].removesuffix("x"), re.findall(r"(\d+) batches", printed["trained"])[0]
    assert f"pruned {pruned} of the {batches} batches" in page.read_text(encoding="utf-8")
    assert {file.name for file in (tmp_path / "run").iterdir()} == set(
        re.findall(r"`(\w+\.\w+)`", page.read_text(encoding="utf-8"))
    )


def table(text: str) -> dict[str, str]:
    """Return the rows of the table at the end of a training, by their names."""
    rows = [re.split(r" {2,}", line, maxsplit=1) for line in text.splitlines()]
    return {row[0]: row[1] for row in rows if len(row) == 2}


def normal(line: str) -> str:
    """Return a line without what differs between versions: the width of columns, and the versions."""
    return " ".join(re.sub(r"\b\d+\.\d+\.\d+\S*", "0.0.0", line).split())
