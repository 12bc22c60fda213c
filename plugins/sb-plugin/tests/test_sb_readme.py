"""The examples of README and docstrings run, and the README's table of arguments is the signature."""

import ast
import doctest
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import sb_plugin
from sb_plugin import SelectiveBackprop

MODULES = sorted(module.name for module in pkgutil.walk_packages(sb_plugin.__path__, "sb_plugin."))
README = Path(__file__).parents[1] / "README.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_the_example_runs(example: str) -> None:
    exec(compile(example, str(README), "exec"), {})


@pytest.mark.parametrize("name", MODULES)
def test_docstrings_of_the_module_run(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples_for_all_ways_to_use_it() -> None:
    assert len(EXAMPLES) == 7


def test_the_table_gives_every_argument_and_default() -> None:
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| ([^|]+) \|", README.read_text(encoding="utf-8"), flags=re.MULTILINE)
    table = {
        name.strip("`"): ast.literal_eval(default.strip("`"))
        for names, defaults in rows
        for name, default in zip(names.split(", "), defaults.split(", "), strict=True)
    }
    signature = inspect.signature(SelectiveBackprop).parameters
    assert table == {name: parameter.default for name, parameter in signature.items()}
