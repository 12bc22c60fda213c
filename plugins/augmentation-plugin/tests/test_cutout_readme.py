"""The README's examples of CutOut and ProgressiveResizing run, its tables are the signatures, its numbers hold."""

import doctest
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from augmentation_plugin import CutOut, ProgressiveResizing, resizing_scale
from augmentation_plugin.holes import mask_of
from augmentation_plugin.sizes import resized_side

HOME = Path(__file__).parents[1]
README = "\n" + "\n".join(path.read_text(encoding="utf-8") for path in sorted(HOME.glob("README*.md")))
MODULES = ("images", "draws", "holes", "cutout", "sizes", "resizing", "progressive_resizing")


def section(name: str) -> str:
    return re.split(r"^## ", README.split(f"\n## {name}\n")[-1], flags=re.MULTILINE)[0]


EXAMPLES = [
    example
    for name in ("CutOut", "ProgressiveResizing")
    for example in re.findall(r"```python\n(.*?)```", "\n" + section(name), flags=re.DOTALL)
]


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_the_example_runs(example: str) -> None:
    exec(compile(example, "README.md", "exec"), {})


def test_there_is_an_example_for_each_way_to_use_both() -> None:
    assert len(EXAMPLES) == 4


@pytest.mark.parametrize("name", MODULES)
def test_docstrings_of_the_module_run(name: str) -> None:
    assert doctest.testmod(importlib.import_module(f"augmentation_plugin.{name}")).failed == 0


@pytest.mark.parametrize("algorithm", [CutOut, ProgressiveResizing])
def test_the_table_gives_every_argument_and_default(algorithm: Any) -> None:
    rows = re.findall(r"^\| `(\w+)` \| `?([^|`]+)`? \|", section(algorithm.__name__), flags=re.MULTILINE)
    defaults = {name: str(p.default) for name, p in inspect.signature(algorithm).parameters.items()}
    assert {name: default.strip().strip('"') for name, default in rows} == defaults


def test_the_share_of_pixels_is_the_one_given() -> None:
    """A quarter at first, and half over the whole training, exact or in multiples of 4."""
    scales = [resizing_scale(step / 3000) for step in range(3000)]
    assert scales[0] ** 2 == 0.25
    assert sum(scale**2 for scale in scales) / 3000 == pytest.approx(0.5, abs=0.005)
    assert sum(resized_side(32, scale, 4) ** 2 for scale in scales) / 3000 == pytest.approx(512, abs=5)


def test_the_sizes_of_ten_steps_are_those_given() -> None:
    sides = [resized_side(32, resizing_scale(step / 10), 4) for step in range(10)]
    assert sides == [16] * 6 + [20, 28, 32, 32]


def test_the_areas_of_a_hole_are_those_given() -> None:
    ys, xs = torch.cartesian_prod(torch.arange(32), torch.arange(32)).T.view(2, -1, 1, 1)
    areas = mask_of(ys, xs, 32, 32, 16).float().mean((1, 2))
    assert [round(float(share), 2) for share in (areas.mean(), areas.min(), areas.max())] == [0.19, 0.06, 0.25]
