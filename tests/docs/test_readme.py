"""What the README promises a newcomer."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from .conftest import DOCS, ROOT, blocks_of

README = ROOT / "README.md"
TEXT = README.read_text()


def test_quick_start_is_two_commands_in_one_block():
    section = TEXT[TEXT.index("## Quick start") : TEXT.index("## An algorithm")]
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    train = "python3 -m engine_core train --example digits"
    install = 'python3 -m pip install -c constraints.txt ".[examples]" ./plugins/sb-plugin'
    test = "python3 -m pip install -c constraints.txt tox && python3 -m tox run-parallel"

    assert fences == [("sh", f"{install} && {train}\n{test}\n")]


def test_the_tutorial_has_the_same_two_commands():
    assert first(DOCS / "quickstart.md", "sh") == first(README, "sh")


def test_an_algorithm_in_ten_lines_is_no_longer_and_the_same_in_both_places():
    shown = first(README, "python")

    assert len([line for line in shown.splitlines() if line]) <= 10
    assert first(DOCS / "authors" / "algorithm.md", "python") == shown


def first(page: Path, language: str) -> str:
    """Return the first block of a language in a page."""
    return next(block.text for block in blocks_of(page) if block.language == language)


def test_what_it_is_takes_three_sentences():
    said = TEXT.partition("<!-- what -->")[2].partition("<!-- /what -->")[0]

    assert len(re.findall(r"[.!?](?=\s)", said)) == 3


TREE = blocks_of(README)[-1].text


def listed() -> list[Path]:
    """Return the paths in the tree; a line is two spaces further right than the folder it lies in."""
    paths: list[Path] = []
    for line in TREE.splitlines():
        indent, name = re.match(r"( *)(\S+)", line).groups()
        above = [path for path in paths if len(path.parts) == len(indent) // 2]
        paths.append((above[-1] if indent else Path()) / name)
    return paths


def contents(folder: Path) -> set[str]:
    """Return what a reader sees in a folder, less what tools leave there."""
    left = {"__pycache__", "__init__.py", "py.typed", "_build", "build", "dist", "runs", "README.md"}
    return {
        entry.name
        for entry in (ROOT / folder).iterdir()
        if entry.name not in left and not entry.name.startswith(".") and entry.suffix != ".egg-info"
    }


def test_the_readme_ends_with_the_tree():
    assert TEXT.endswith(f"{TREE}```\n")


def test_each_line_of_the_tree_says_what_it_is():
    lines = [line for line in TREE.splitlines() if not line.endswith("/")]

    assert [line for line in lines if len(line.split(maxsplit=1)) < 2] == []


def test_what_the_tree_lists_is_there():
    assert [str(path) for path in listed() if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("folder", sorted({path.parent for path in listed()}), ids=str)
def test_a_folder_of_the_tree_is_shown_completely(folder):
    assert {path.name for path in listed() if path.parent == folder} == contents(folder)


def test_the_tree_is_in_the_order_of_the_layers():
    order = [name for layer in layers_of_the_tests() for name in layer]
    shown = [path.stem for path in listed() if path.parent == Path("engine_core")]

    assert shown == [name for name in order if name in shown]


def test_the_house_in_the_docs_has_the_layers_that_are_tested():
    page = (DOCS / "explanation" / "design.md").read_text()
    house = {int(number): names.split() for number, names in re.findall(r"^(\d) +(\S+(?: \S+)*)", page, re.MULTILINE)}
    there = {path.stem for path in listed() if path.parent == Path("engine_core")} - {"__main__"}

    assert house == {
        number: [name for name in layer if name in there] for number, layer in enumerate(layers_of_the_tests())
    }


def layers_of_the_tests() -> list[list[str]]:
    """Return the layers as the test of the imports has them."""
    tree = ast.parse((ROOT / "tests" / "core" / "test_layers.py").read_text())
    return next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LAYERS"
    )
