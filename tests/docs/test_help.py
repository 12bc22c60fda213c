"""Every command in README and docs exists, `--help` shows one that does, and a misspelt one is told the nearest."""

import contextlib
import re
import shlex

import click
import pytest
from click.testing import CliRunner

from engine_core.cli import main

from .conftest import PAGES, ROOT, blocks_of, name_of


def tree(command, *path):
    """Return the words of each command and group, from the root on."""
    found = [path]
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found += tree(command.get_command(context, name), *path, name)
    return found


TREE = tree(main)


def help_of(path, columns=80):
    """Return the help on a terminal so wide."""
    result = CliRunner().invoke(main, [*path, "--help"], prog_name="engine-core", env={"COLUMNS": str(columns)})
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("path", TREE, ids=" ".join)
def test_the_help_ends_with_an_example_that_exists_and_has_no_cut_sentence(path):
    examples = re.split(r"^ +Examples?:\n", help_of(path), flags=re.MULTILINE)[1].splitlines()
    assert [line for line in examples if not line.startswith(" ".join(["    engine-core", *path]))] == []
    for line in examples:
        parse(main, shlex.split(line)[1:])
    for columns in (80, 50):
        usage, *paragraphs = help_of(path, columns).split("\n\n")
        assert usage.startswith("Usage: ")
        assert [line for line in "\n".join(paragraphs).splitlines() if line.endswith("...")] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("trian", "Error: there is no command 'trian' here; did you mean 'train'?"),
        ("plugins docter", "Error: there is no command 'docter' here; did you mean 'doctor'?"),
        ("checkpoint xx", "Error: there is no command 'xx' here; known: export, show, verify"),
        ("train\x1b[31m", "Error: there is no command 'train\\x1b[31m' here; did you mean 'train'?"),
        ("--versoin", "--version"),
        ("train --sed 3", "--seed"),
        ("plugins list --jsn", "--json"),
    ],
)
def test_a_misspelt_command_or_option_gets_the_nearest(words, said):
    result = CliRunner().invoke(main, words.split())
    assert (result.exit_code, said in result.output.splitlines()[-1]) == (2, True)


TOX = (ROOT / "tox.ini").read_text(encoding="utf-8")
SHELLS = ("console", "sh", "shell", "bash")
OURS = (["engine-core"], ["python3", "-m", "engine_core"], ["python", "-m", "engine_core"])


def commands_of(page):
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


def parse(command, arguments):
    """Parse as click does, without running anything."""
    context = click.Context(command, info_name="engine-core", **command.context_settings)
    while isinstance(command, click.Group):
        name, command, arguments = command.resolve_command(context, arguments)
        context = click.Context(command, parent=context, info_name=name)
    with contextlib.suppress(click.exceptions.Exit):  # --help
        command.make_context(context.info_name, list(arguments), parent=context.parent)


def is_environment(name):
    """Is it a section of tox.ini, or one of its matrix?"""
    return f"[testenv:{name}]" in TOX or re.fullmatch(r"py31[0-3]-(lowest|latest|full)", name) is not None
