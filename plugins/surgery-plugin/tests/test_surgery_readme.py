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

import surgery_plugin
from engine_core.config import build_algorithms, load_config

MODULES = sorted(m.name for m in pkgutil.walk_packages(surgery_plugin.__path__, "surgery_plugin.") if not m.ispkg)
README = Path(__file__).parents[1] / "README.md"
TEXT = README.read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
SECTIONS = dict(re.findall(r"^## ([A-Z]\w+)\n(.*?)(?=^## )", TEXT, flags=re.DOTALL | re.MULTILINE))
ALGORITHMS = [name for name in SECTIONS if hasattr(surgery_plugin, name)]


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_the_example_runs_and_prints_what_it_says(example, capsys):
    exec(compile(example, str(README), "exec"), {})
    printed = re.findall(r"print\(.*\)  # (.*)", example)
    assert capsys.readouterr().out.splitlines() == printed


@pytest.mark.parametrize("name", MODULES)
def test_docstrings_of_the_module_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_each_algorithm_has_a_section_and_each_section_a_blank_line_before():
    layers = ["BlurPool", "SqueezeExcite", "ChannelsLast", "GatedLinearUnits", "FusedLayerNorm", "StochasticDepth"]
    assert layers == ALGORITHMS
    assert set(layers) == {name for name in surgery_plugin.__all__ if hasattr(getattr(surgery_plugin, name), "match")}
    assert len(re.findall(r"^## ", TEXT, flags=re.MULTILINE)) == TEXT.count("\n\n## ")


def test_the_config_builds_the_algorithms_that_it_names(tmp_path):
    (given,) = re.findall(r"```yaml\n(.*?)```", TEXT, flags=re.DOTALL)
    target = '{target: "torch.nn:Identity"}'
    rest = "".join(f"{key}: {target}\n" for key in ("model", "data", "optimizer"))
    (tmp_path / "run.yaml").write_text(rest + given, encoding="utf-8")
    built = {type(algorithm): algorithm for algorithm in build_algorithms(load_config(tmp_path / "run.yaml"))}
    assert list(built) == [surgery_plugin.BlurPool, surgery_plugin.StochasticDepth, surgery_plugin.ChannelsLast]
    assert vars(built[surgery_plugin.BlurPool])["min_channels"] == 8
    assert vars(built[surgery_plugin.StochasticDepth])["settings"].drop_per == "batch"


def test_the_tree_names_each_file():
    tree = re.findall(r"^ +(\w+\.py) ", TEXT, flags=re.MULTILINE)
    assert sorted(tree) == sorted(f"{name.rpartition('.')[2]}.py" for name in MODULES)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_its_section_names_it_and_gives_every_argument_and_default(name):
    algorithm: Any = getattr(surgery_plugin, name)
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", SECTIONS[name], flags=re.MULTILINE)
    signature = inspect.signature(algorithm).parameters
    assert {argument: ast.literal_eval(default.strip()) for argument, default in rows} == {
        argument: parameter.default for argument, parameter in signature.items()
    }
    assert f"Registered as `{algorithm.metadata.name}`." in SECTIONS[name]
    titles = re.findall(r"^### (.*)", SECTIONS[name], flags=re.MULTILINE)
    assert titles[-3:] == ["According to its source", "Measured here", "When not to use it"]
