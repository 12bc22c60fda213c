"""Small plugins as their authors would publish them: a pyproject, a module, and the wheel that is built from it."""

from __future__ import annotations

import contextlib
import textwrap
from dataclasses import dataclass, field

import hatchling.build as backend

PYPROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "{version}"
dependencies = {dependencies}

{entry_points}
[tool.hatch.build]
dev-mode-dirs = ["."]

[tool.hatch.build.targets.wheel]
only-include = ["{module}.py"]
"""


@dataclass(frozen=True)
class Plugin:
    """A distribution with one module, which is named after it."""

    name: str
    text: str
    version: str = "1.0"
    entry_points: dict[str, dict[str, str]] = field(default_factory=dict)
    dependencies: tuple[str, ...] = ()

    @property
    def module(self):
        return self.name.replace("-", "_")

    def write(self, folder):
        """Write the source tree."""
        folder.mkdir(parents=True)
        groups = [
            f'[project.entry-points."engine_core.{kind}"]\n'
            + "".join(f'{name} = "{self.module}:{attribute}"\n' for name, attribute in entries.items())
            for kind, entries in self.entry_points.items()
        ]
        pyproject = PYPROJECT.format(
            name=self.name,
            version=self.version,
            dependencies=list(self.dependencies),
            entry_points="\n".join(groups),
            module=self.module,
        )
        (folder / "pyproject.toml").write_text(pyproject)
        (folder / f"{self.module}.py").write_text(textwrap.dedent(self.text))
        return folder

    def build(self, folder):
        """Build the wheel."""
        with contextlib.chdir(self.write(folder)):
            return folder / "dist" / backend.build_wheel("dist")


ALGORITHM = """
from engine_core import Algorithm, AlgorithmMetadata, algorithm_pass, passes


class {name}(Algorithm):
    metadata = AlgorithmMetadata({metadata})

    def match(self, event, state):
        return True

    def apply(self, event, state, logger):
        pass
"""


def algorithm(name, metadata='events=("batch_end",)'):
    """Return the text of a module with an algorithm that does nothing."""
    return ALGORITHM.format(name=name, metadata=metadata)


HONEST = Plugin("honest-plugin", algorithm("Honest"), entry_points={"algorithms": {"honest": "Honest"}})
PROJECT = """
import torch


def net():
    return torch.nn.Linear(4, 3)


def loader():
    return [(torch.zeros(2, 4), torch.tensor([0, 1]))]
"""
CONFIG = """\
model: {target: "project:net"}
data: {target: "project:loader"}
loss: {target: "torch.nn:CrossEntropyLoss"}
optimizer: {target: "torch.optim:SGD", args: {lr: 0.1}}
trainer: {max_duration: 1ba, progress_bar: false, run_name: first}
"""
