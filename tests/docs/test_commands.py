"""Every command in README and docs exists. What it prints is compared in test_outputs.py."""

from __future__ import annotations

import contextlib
import re
import shlex
from typing import NamedTuple

import click
import pytest

from engine_core.cli import main

from .conftest import PAGES, ROOT, blocks_of, name_of

SHELLS = ("console", "sh", "shell", "bash")
OURS = (["engine-core"], ["python3", "-m", "engine_core"], ["python", "-m", "engine_core"])


class Command(NamedTuple):
    """A command in a page, the part of a line between two `&&`."""

    words: list[str]

    @property
    def ours(self) -> list[str] | None:
        """The arguments if it is engine-core's."""
        return next((self.words[len(name) :] for name in OURS if self.words[: len(name)] == name), None)


def commands_of(page) -> list[Command]:
    """Return the commands of a page: those after a prompt, and each line of a block without one."""
    found = []
    for block in blocks_of(page):
        prompted = block.language == "console" and block.text.startswith("$ ")
        if block.language in SHELLS:
            for line in block.text.replace("\\\n", " ").splitlines():
                if not prompted or line.startswith("$ "):
                    parts = line.removeprefix("$ ").split(" && ")
                    found += [Command(shlex.split(part, comments=True)) for part in parts if part]
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
        if ("/" in path or path.endswith(".txt")) and not path.startswith((".venv", "runs/")) and "://" not in path:
            assert (ROOT / path).exists(), f"{word} is not a path in the repository"
    if "tox" in command.words and "-e" in command.words:
        assert is_environment(command.words[command.words.index("-e") + 1])
    if "tox" in command.words and "-m" in command.words[command.words.index("tox") :]:
        assert f"\n    {command.words[-1]} = " in (ROOT / "tox.ini").read_text(encoding="utf-8")


def parse(command: click.Command, arguments: list[str]) -> None:
    """Parse as click does, without running anything."""
    context = click.Context(command, info_name="engine-core", **command.context_settings)
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
