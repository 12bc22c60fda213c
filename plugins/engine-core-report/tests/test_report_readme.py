"""The example of the README and those of docstrings run, and its lists are complete."""

import copy
import doctest
import importlib
import pkgutil
import re
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import engine_core_report

from .left_runs import MANIFEST, METRICS, write_run

PACKAGE = Path(engine_core_report.__file__).parent
MODULES = sorted(module.name for module in pkgutil.walk_packages(engine_core_report.__path__, "engine_core_report."))
README = Path(__file__).parents[1] / "README.md"
TEXT = README.read_text(encoding="utf-8")


def test_the_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    for name, loss in (("baseline", 0.5), ("changed", 0.75)):
        manifest = copy.deepcopy(MANIFEST) | {"run_name": name, "seed": int(loss * 4)}
        metrics = [*METRICS[:2], METRICS[2] | {"eval/loss": loss}]
        write_run(f"runs/{name}", manifest=manifest, metrics=metrics, results=None)
    exec(compile(example, str(README), "exec"), {})
    assert capsys.readouterr().out == "setting\n  seed  2 -> 3\n"
    assert Path("both.html").read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize("name", MODULES)
def test_docstrings_of_the_module_run(name):
    assert doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS).failed == 0


def test_the_first_table_has_all_commands():
    registered = {entry.name for entry in entry_points(group="engine_core.commands") if "_report" in entry.value}
    assert set(re.findall(r"^\| `engine-core (\w+)` \|", TEXT, flags=re.MULTILINE)) == registered


def test_the_tree_lists_every_file_and_folder():
    listed = re.findall(r"^  ([\w.]+)/? ", TEXT.partition("## The files")[2], flags=re.MULTILINE)
    there = {path.name for path in PACKAGE.iterdir()} - {"__init__.py", "__pycache__", "py.typed"}
    assert sorted(listed) == sorted(there)
