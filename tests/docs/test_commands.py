"""Every command in README and docs exists. What it prints is compared in test_outputs.py."""

from __future__ import annotations

import contextlib
import re
import shlex

import click
import pytest

from engine_core.cli import main

from .conftest import PAGES, ROOT, blocks_of, name_of

TOX = (ROOT / "tox.ini").read_text(encoding="utf-8")
SHELLS = ("console", "sh", "shell", "bash")
OURS = (["engine-core"], ["python3", "-m", "engine_core"], ["python", "-m", "engine_core"])


def commands_of(page) -> list[list[str]]:
    """Return the words of each command of a page: those after a prompt, and each line of a block without one."""
    found = []
    for block in blocks_of(page):
        prompted = block.language == "console" and block.text.startswith("$ ")
        if block.language in SHELLS:
            for line in block.text.replace("\\\n", " ").splitlines():
                if not prompted or line.startswith("$ "):
                    parts = line.removeprefix("$ ").split(" && ")
                    found += [shlex.split(part, comments=True) for part in parts if part]
    return found


@pytest.mark.parametrize("page", [page for page in PAGES if commands_of(page)], ids=name_of)
def test_the_commands_of_a_page_exist_with_these_options(page):
    for words in commands_of(page):
        for name in OURS:
            if words[: len(name)] == name:
                parse(main, words[len(name) :])
        for word in words:
            path = word.removeprefix("./").partition("[")[0]
            if ("/" in path or path.endswith(".txt")) and not path.startswith((".venv", "runs/")) and "://" not in path:
                assert (ROOT / path).exists(), f"{word} is not a path in the repository"
        if "tox" in words and "-e" in words:
            assert is_environment(words[words.index("-e") + 1])
        if "tox" in words and "-m" in words[words.index("tox") :]:
            assert f"\n    {words[-1]} = " in TOX


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
    return f"[testenv:{name}]" in TOX or re.fullmatch(r"py31[0-3]-(lowest|latest|full)", name) is not None
