"""The examples of the README and of the docstrings run, and its tables of arguments are the signatures."""

import doctest
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from augmentation_plugin import CutMix, MixUp
from engine_core.registry import Registry

MODULES = ["pairings", "blending", "pasting", "targets", "dense", "mixing", "mixup", "cutmix"]
README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_the_example_runs(example: str) -> None:
    exec(compile(example, "README.md", "exec"), {})


def test_the_configuration_names_one_and_arguments_that_it_takes() -> None:
    (entry,) = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", README, flags=re.DOTALL)[0])["algorithms"]
    made = Registry.scan().load("algorithms", entry["name"])(**entry["args"])
    assert type(made) is MixUp and made.alpha == 0.2


@pytest.mark.parametrize("name", MODULES)
def test_docstrings_of_the_module_run(name: str) -> None:
    flags = doctest.ELLIPSIS
    assert doctest.testmod(importlib.import_module(f"augmentation_plugin.{name}"), optionflags=flags).failed == 0


@pytest.mark.parametrize("kind", [MixUp, CutMix])
def test_the_table_gives_every_argument_and_default(kind: Any) -> None:
    section = README.split(f"\n## {kind.__name__}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", section, flags=re.MULTILINE)
    signature = inspect.signature(kind).parameters
    assert rows == [(name, str(parameter.default)) for name, parameter in signature.items()]


@pytest.mark.parametrize("kind", [MixUp, CutMix])
def test_the_section_names_what_is_registered_and_its_source(kind: Any) -> None:
    section = README.split(f"\n## {kind.__name__}\n")[1].split("\n## ")[0]
    assert f"Registered as `{kind.metadata.name}`." in section
    (arxiv,) = re.findall(r"arXiv (\d+\.\d+)", " ".join(kind.__doc__.split()))
    assert f"https://arxiv.org/abs/{arxiv}" in section


def test_the_tree_names_the_files_of_both() -> None:
    assert set(re.findall(r"^  (\w+)\.py ", README, flags=re.MULTILINE)) >= set(MODULES)
