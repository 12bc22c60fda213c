"""What the checks ask of the test class that runs them. Knows no check and no test class."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ..algorithm import Algorithm
from ..passes import AlgorithmPass

if TYPE_CHECKING:
    import torch


class AlgorithmKit(Protocol):
    """Makes an algorithm and the parts to train with, as `AlgorithmConformance` does."""

    def make_algorithm(self) -> Algorithm:
        """Return a new instance, made the same way each time."""

    def make_model(self) -> torch.nn.Module:
        """Return a new model for `make_batches`."""

    def make_batches(self) -> Iterable[Any]:
        """Return the batches of an epoch."""

    def make_loss(self) -> Callable[[Any, Any], Any] | None:
        """Return a loss function of outputs and targets, None for a model with its own."""

    def make_optimizers(self, parameters: Iterable[Any]) -> Any:
        """Return an optimizer for the parameters, or several."""

    def make_others(self) -> Sequence[Algorithm]:
        """Return the algorithms to combine it with."""


class PassKit(Protocol):
    """Makes a pass and algorithms to arrange, as `PassConformance` does."""

    def make_pass(self) -> AlgorithmPass:
        """Return the pass."""

    def make_algorithms(self) -> Sequence[Algorithm]:
        """Return algorithms to arrange."""
