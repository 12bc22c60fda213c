"""The examples of README and docstrings run, its tables say what is there, and the former names are aliases."""

import ast
import doctest
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest
import torch

import engine_core_author
from engine_core.needs import WRITABLE
from engine_core_author.audit_callback import Audit

README = Path(__file__).parents[1] / "README.md"
TEXT = README.read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
FOLDER = Path(engine_core_author.__file__).parent
MODULES = [module.name for module in pkgutil.walk_packages([str(FOLDER)], "engine_core_author.")]


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_the_example_runs(example: str) -> None:
    torch.manual_seed(0)
    exec(compile(example, str(README), "exec"), {"__name__": __name__})


@pytest.mark.parametrize("name", MODULES)
def test_docstrings_of_the_module_run(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS).failed == 0


def test_the_table_of_arguments_is_the_audits_signature() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", TEXT.partition("| argument |")[2], flags=re.MULTILINE))
    given = {name: parameter.default for name, parameter in inspect.signature(Audit).parameters.items()}
    assert (rows.pop("fields"), given.pop("fields")) == ("all that an algorithm may write", WRITABLE)
    assert {name: ast.literal_eval(default.strip("`")) for name, default in rows.items()} == given


def test_the_tree_lists_every_file_and_folder() -> None:
    there = {f"{path.name}/" if path.is_dir() else path.name for path in FOLDER.iterdir()}
    assert set(re.findall(r"^  ([\w/.]+) ", TEXT, flags=re.MULTILINE)) == there - {
        "__init__.py",
        "__pycache__/",
        "py.typed",
    }


@pytest.mark.parametrize(
    ("former", "name"),
    [
        ("testing", "AlgorithmConformance"),
        ("audit", "Observer"),
        ("callbacks.audit", "Audit"),
        ("doctor", "examine"),
        ("scaffold", "create_plugin"),
    ],
)
def test_a_former_name_is_an_alias_that_says_where_it_is_now(former: str, name: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"engine_core\.{former}\.{name} .* from engine_core_author"):
        found = getattr(importlib.import_module(f"engine_core.{former}"), name)
    assert found.__module__.startswith("engine_core_author")
