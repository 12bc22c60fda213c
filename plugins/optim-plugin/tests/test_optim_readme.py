"""The examples of README and docstrings run, and the README's tables of arguments are the signatures."""

import ast
import doctest
import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from typing import Any

import pytest

import optim_plugin
from engine_core import Algorithm

MODULES = sorted(f"optim_plugin.{module.name}" for module in pkgutil.iter_modules(optim_plugin.__path__))
README = Path(__file__).parents[1] / "README.md"
TEXT = README.read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
ALGORITHMS: list[Any] = [
    made
    for made in vars(optim_plugin).values()
    if isinstance(made, type) and issubclass(made, Algorithm) and not inspect.isabstract(made)
]


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_the_example_runs(example):
    exec(compile(example, str(README), "exec"), {})


@pytest.mark.parametrize("name", MODULES)
def test_docstrings_of_the_module_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda made: made.__name__)
def test_each_algorithm_has_a_section_with_every_argument_and_default(algorithm):
    """And an example for the Trainer and one for a loop."""
    section = TEXT.split(f"\n## {algorithm.__name__}\n")[1].split("\n## ")[0]
    assert f"Registered as `{algorithm.metadata.name}`." in section
    rows = re.findall(r"^\| `(\w+)` \| `?([^|`]+)`? \|", section, flags=re.MULTILINE)
    signature = inspect.signature(algorithm).parameters
    assert {name: ast.literal_eval(default.strip()) for name, default in rows} == {
        name: parameter.default for name, parameter in signature.items()
    }
    assert section.count("```python") >= 2


def test_the_tree_lists_every_file():
    listed = re.findall(r"^  (\w+)\.py ", TEXT, flags=re.MULTILINE)
    assert sorted(f"optim_plugin.{name}" for name in listed) == MODULES
