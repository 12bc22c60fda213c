"""What `--help` says of each command, and what a misspelt command is told."""

from __future__ import annotations

import re
import shlex

import click
import pytest
from click.testing import CliRunner

from engine_core.cli import main

from .test_commands import parse


def tree(command: click.Command, *path: str) -> list[tuple[str, ...]]:
    """Return the words of each command and group, from the root on."""
    found = [path]
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found += tree(command.get_command(context, name), *path, name)
    return found


TREE = tree(main)


def help_of(path: tuple[str, ...], columns: int = 80) -> str:
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
