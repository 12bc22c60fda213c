"""The examples of README and docstrings run, and the README's tables are the code's."""

import doctest
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest
import yaml

import labels_plugin
from engine_core.registry import Registry
from labels_plugin import LabelSmoothing

MODULES = sorted(f"labels_plugin.{module.name}" for module in pkgutil.iter_modules(labels_plugin.__path__))
README = Path(__file__).parents[1] / "README.md"
TEXT = README.read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_the_example_runs(example: str) -> None:
    exec(compile(example, str(README), "exec"), {})


@pytest.mark.parametrize("name", MODULES)
def test_docstrings_of_the_module_run(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_the_configuration_names_it_and_arguments_that_it_takes() -> None:
    (entry,) = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", TEXT, flags=re.DOTALL)[0])["algorithms"]
    made = Registry.scan().load("algorithms", entry["name"])(**entry["args"])
    assert type(made) is LabelSmoothing and made.smoothing == 0.1


def test_there_are_examples_for_all_three_ways_to_use_it() -> None:
    assert len(EXAMPLES) == 3


def test_the_table_gives_every_argument_and_default() -> None:
    table = dict(re.findall(r"^\| `(\w+)` \| ([\d.]+) \|", TEXT, flags=re.MULTILINE))
    signature = inspect.signature(LabelSmoothing).parameters
    assert table == {name: str(parameter.default) for name, parameter in signature.items()}


def test_the_tree_names_each_module() -> None:
    assert sorted(re.findall(r"^  (\w+)\.py  ", TEXT, flags=re.MULTILINE)) == [name.split(".")[1] for name in MODULES]
