"""What the checks ask of the test class that runs them, and what they return. Knows no check, imports no torch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from ..algorithm import Algorithm
from ..errors import PluginError
from ..passes import AlgorithmPass
from ..registry import Registry

if TYPE_CHECKING:
    import torch


class Fault(NamedTuple):
    """A broken rule: what was seen, as a sentence without its full stop, and the exception behind it."""

    seen: str
    cause: BaseException | None = None


class AlgorithmKit:
    """Makes an algorithm and the parts to train with."""

    def make_algorithm(self) -> Algorithm:
        """Return a new instance, made the same way each time; it has to match within a few steps."""
        raise NotImplementedError(f"{type(self).__name__} has to return one in make_algorithm(self)")

    def make_model(self) -> torch.nn.Module:
        """Return a new model for `make_batches`; default: a tiny conv net with BatchNorm and LayerNorm."""
        import torch  # noqa: PLC0415  only when needed
        from torch import nn  # noqa: PLC0415

        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(3)
            return nn.Sequential(
                nn.Conv2d(1, 4, 3, padding=1),
                nn.BatchNorm2d(4),
                nn.ReLU(),
                nn.MaxPool2d(2),
                nn.Flatten(),
                nn.Linear(64, 16),
                nn.LayerNorm(16),
                nn.ReLU(),
                nn.Linear(16, 4),
            )

    def make_batches(self) -> Iterable[Any]:
        """Return the batches of an epoch; default: 4 of inputs (8, 1, 8, 8) and classes (8,)."""
        import torch  # noqa: PLC0415

        generator = torch.Generator().manual_seed(4)
        inputs = torch.randn(32, 1, 8, 8, generator=generator)
        targets = torch.randint(4, (32,), generator=generator)
        return [(inputs[start : start + 8].clone(), targets[start : start + 8].clone()) for start in range(0, 32, 8)]

    def make_loss(self) -> Callable[[Any, Any], Any] | None:
        """Return a loss function of outputs and targets, None for a model with its own; default: cross entropy."""
        import torch  # noqa: PLC0415

        return torch.nn.CrossEntropyLoss()

    def make_optimizers(self, parameters: Iterable[Any]) -> Any:
        """Return an optimizer of the parameters, or several; default: SGD with momentum."""
        import torch  # noqa: PLC0415

        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)

    def make_others(self) -> Sequence[Algorithm]:
        """Return the algorithms to combine it with; default: one of each other installed one.

        Those that can't be made without arguments are left out.
        """
        own = type(self.make_algorithm())
        return [made for made in _installed_algorithms() if type(made) is not own]


class PassKit:
    """Makes a pass and algorithms to arrange."""

    def make_pass(self) -> AlgorithmPass:
        """Return the pass."""
        raise NotImplementedError(f"{type(self).__name__} has to return the pass in make_pass(self)")

    def make_algorithms(self) -> Sequence[Algorithm]:
        """Return algorithms to arrange; default: one of each that is installed and can be made without arguments.

        If the pass handles an algorithm that needs arguments, return one. The kit adds unknown algorithms, and second
        instances and subclasses of those returned.
        """
        return _installed_algorithms()


def _installed_algorithms() -> list[Any]:
    """Return one of each installed algorithm that can be imported and made without arguments."""
    registry = Registry.scan()
    made = []
    for record in registry.records:
        if record.kind != "algorithms" or record.status in ("disabled", "broken"):
            continue
        with suppress(PluginError):  # the test of one plugin does not need the others to work
            algorithm = registry.load("algorithms", record.qualified_name)
            with warnings.catch_warnings(), suppress(TypeError, ValueError):  # it needs arguments
                warnings.simplefilter("ignore")
                made.append(algorithm())
    return made
