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
import yaml

import insight_plugin
from engine_core.registry import Registry

MODULES = sorted(f"insight_plugin.{module.name}" for module in pkgutil.iter_modules(insight_plugin.__path__))
README = Path(__file__).parents[1] / "README.md"
TEXT = README.read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
NAMES = {
    "model_summary": "ModelSummary",
    "norms": "Norms",
    "gradient_norm": "GradientNorm",
    "train_metrics": "TrainMetrics",
    "profiler": "Profiler",
    "memory": "Memory",
    "confusion": "Confusion",
}


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_the_example_runs(example: str) -> None:
    exec(compile(example, str(README), "exec"), {})


@pytest.mark.parametrize("name", MODULES)
def test_docstrings_of_the_module_run(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize(("name", "kind"), NAMES.items())
def test_each_callback_has_a_section_with_every_argument_and_default(name: str, kind: str) -> None:
    """And an example."""
    section = TEXT.split(f"\n## {kind}\n")[1].split("\n## ")[0]
    assert f"Registered as `{name}`." in section
    table = section.partition("| argument |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \| `([^|`]+)` \|", table, flags=re.MULTILINE)
    signature = inspect.signature(getattr(insight_plugin, kind)).parameters
    assert {argument: ast.literal_eval(default) for argument, default in rows} == {
        argument: parameter.default for argument, parameter in signature.items()
    }
    assert section.count("```python") == 1


def test_the_configuration_names_all_of_them_and_arguments_that_they_take() -> None:
    entries: list[Any] = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", TEXT, flags=re.DOTALL)[0])["callbacks"]
    given = [entry if isinstance(entry, dict) else {"name": entry} for entry in entries]
    made = [Registry.scan().load("callbacks", each["name"])(**each.get("args", {})) for each in given]
    assert [type(callback).__name__ for callback in made] == [*NAMES.values()]


def test_the_first_table_links_to_all_of_them() -> None:
    assert dict(re.findall(r"^\| \[`(\w+)`\]\(#(\w+)\)", TEXT, flags=re.MULTILINE)) == {
        name: kind.lower() for name, kind in NAMES.items()
    }


def test_the_tree_lists_every_file() -> None:
    listed = re.findall(r"^  (\w+)\.py ", TEXT, flags=re.MULTILINE)
    assert sorted(f"insight_plugin.{name}" for name in listed) == MODULES
