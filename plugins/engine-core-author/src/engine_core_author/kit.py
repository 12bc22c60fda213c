"""What the checks ask of the test class that runs them, and what they return. Knows no check, imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from engine_core.algorithm import Algorithm
from engine_core.passes import AlgorithmPass

from .defaults import default_batches, default_loss, default_model, default_optimizer, installed_algorithms

if TYPE_CHECKING:
    import torch


class Fault(NamedTuple):
    """A broken rule: what was seen, as a sentence without its full stop, and the exception behind it."""

    seen: str
    cause: BaseException | None = None


class AlgorithmKit:
    """Makes an algorithm and the parts to train with.

    Attributes:
        on_ranks: what two ranks do. `equal`: the same as one process. `microbatches`: the same as one process with a
            microbatch for each rank, for what acts on a microbatch or draws once for it. `law`: the same on average
            only, for what draws for each row.
    """

    on_ranks: Literal["equal", "microbatches", "law"] = "equal"

    def make_algorithm(self) -> Algorithm:
        """Return a new instance, made the same way each time; it has to match within a few steps."""
        raise NotImplementedError(f"{type(self).__name__} has to return one in make_algorithm(self)")

    def make_model(self) -> torch.nn.Module:
        """Return a new model for `make_batches`; default: a tiny conv net with BatchNorm and LayerNorm."""
        return default_model()

    def make_batches(self) -> Iterable[Any]:
        """Return the batches of an epoch; default: 4 of inputs (8, 1, 8, 8) and classes (8,)."""
        return default_batches()

    def make_loss(self) -> Callable[[Any, Any], Any] | None:
        """Return a loss function of outputs and targets, None for a model with its own; default: cross entropy."""
        return default_loss()

    def make_optimizers(self, parameters: Iterable[Any]) -> Any:
        """Return an optimizer of the parameters, or several; default: SGD with momentum."""
        return default_optimizer(parameters)

    def make_others(self) -> Sequence[Algorithm]:
        """Return the algorithms to combine it with; default: one of each other installed one.

        Those that can't be made without arguments are left out.
        """
        own = type(self.make_algorithm())
        return [made for made in installed_algorithms() if type(made) is not own]


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
        return installed_algorithms()
