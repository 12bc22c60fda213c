"""The examples of README and docstrings run, its tables of arguments are the signatures, its numbers hold."""

import ast
import doctest
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest
import torch
import yaml

import augmentation_plugin
from augmentation_plugin import CutMix, CutOut, MixUp, ProgressiveResizing, resizing_scale
from augmentation_plugin.holes import mask_of
from augmentation_plugin.sizes import resized_side
from engine_core.registry import Registry

MODULES = sorted(module.name for module in pkgutil.iter_modules(augmentation_plugin.__path__))
README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
ALGORITHMS = [MixUp, CutMix, CutOut, ProgressiveResizing]


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_the_example_runs(example):
    exec(compile(example, "README.md", "exec"), {})


def test_the_configuration_names_one_and_arguments_that_it_takes():
    (entry,) = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", README, flags=re.DOTALL)[0])["algorithms"]
    made = Registry.scan().load("algorithms", entry["name"])(**entry["args"])
    assert type(made) is MixUp and made.alpha == 0.2


@pytest.mark.parametrize("name", MODULES)
def test_docstrings_of_the_module_run(name):
    module = importlib.import_module(f"augmentation_plugin.{name}")
    assert doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed == 0


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_the_section_gives_every_argument_and_default_and_examples_for_trainer_and_loop(kind):
    section = README.split(f"\n## {kind.__name__}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| `?([^|`]+)`? \|", section, flags=re.MULTILINE)
    signature = inspect.signature(kind).parameters
    assert [(name, ast.literal_eval(default.strip())) for name, default in rows] == [
        (name, parameter.default) for name, parameter in signature.items()
    ]
    assert f"Registered as `{kind.metadata.name}`." in section
    assert all(f"https://arxiv.org/abs/{paper}" in section for paper in re.findall(r"(\d{4}\.\d{5})", kind.__doc__))
    assert section.count("```python") >= 2


def test_the_tree_names_each_file():
    assert sorted(re.findall(r"^  (\w+)\.py ", README, flags=re.MULTILINE)) == MODULES


def test_the_share_of_pixels_is_the_one_given():
    """A quarter at first, and half over the whole training, exact or in multiples of 4."""
    scales = [resizing_scale(step / 3000) for step in range(3000)]
    assert scales[0] ** 2 == 0.25
    assert sum(scale**2 for scale in scales) / 3000 == pytest.approx(0.5, abs=0.005)
    assert sum(resized_side(32, scale, 4) ** 2 for scale in scales) / 3000 == pytest.approx(512, abs=5)


def test_the_sizes_of_ten_steps_are_those_given():
    sides = [resized_side(32, resizing_scale(step / 10), 4) for step in range(10)]
    assert sides == [16] * 6 + [20, 28, 32, 32]


def test_the_areas_of_a_hole_are_those_given():
    ys, xs = torch.cartesian_prod(torch.arange(32), torch.arange(32)).T.view(2, -1, 1, 1)
    areas = mask_of(ys, xs, 32, 32, 16).float().mean((1, 2))
    assert [round(float(share), 2) for share in (areas.mean(), areas.min(), areas.max())] == [0.19, 0.06, 0.25]
