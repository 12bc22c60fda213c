"""What a plugin author subclasses to check an algorithm. Imports no torch; the checks behind it do."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from ..algorithm import Algorithm
from ..errors import EngineError
from .others import installed_algorithms
from .rules import ALGORITHM_RULES, BrokenRule

if TYPE_CHECKING:
    import torch

__all__ = ["AlgorithmConformance"]


class AlgorithmConformance:
    """The checks that each algorithm for engine-core has to pass, as a test class for pytest.

    Subclass it under a name that pytest collects, and say how to make the algorithm; the rest may be overridden. Each
    check trains tiny nets on the CPU, and fails with the rule that was broken, what was seen, and why it matters.

    Example:
        >>> class TestHalve(AlgorithmConformance):
        ...     def make_algorithm(self):
        ...         return Halve(factor=0.5)
    """

    def make_algorithm(self) -> Algorithm:
        """Return a new instance, made the same way each time; it has to match within a few steps."""
        raise NotImplementedError(f"{type(self).__name__} has to return one in make_algorithm(self)")

    def make_model(self) -> torch.nn.Module:
        """Return a new model for `make_batches`; default: a tiny conv net with BatchNorm and LayerNorm."""
        return _parts().make_model()  # type: ignore[no-any-return]

    def make_batches(self) -> Iterable[Any]:
        """Return the batches of an epoch; default: 4 of inputs (8, 1, 8, 8) and classes (8,)."""
        return _parts().make_batches()  # type: ignore[no-any-return]

    def make_loss(self) -> Callable[[Any, Any], Any] | None:
        """Return a loss function of outputs and targets, None for a model with its own; default: cross entropy."""
        return _parts().make_loss()  # type: ignore[no-any-return]

    def make_optimizers(self, parameters: Iterable[Any]) -> Any:
        """Return an optimizer of the parameters, or several; default: SGD with momentum."""
        return _parts().make_optimizers(parameters)

    def make_others(self) -> Sequence[Algorithm]:
        """Return the algorithms to combine it with; default: one of each other installed one.

        Those that can't be made without arguments are left out.
        """
        own = type(self.make_algorithm())
        return [made for made in installed_algorithms() if type(made) is not own]

    def test_metadata(self) -> None:
        """The metadata is valid, and its name the entry point's."""
        self._check("declarations", "test_metadata")

    def test_match_is_pure(self) -> None:
        """`match` changes nothing and gives the same answer when asked again."""
        self._check("matching", "test_match_is_pure")

    def test_match_only_declared_events(self) -> None:
        """`match` is false at all events that metadata does not list."""
        self._check("matching", "test_match_only_declared_events")

    def test_match_is_fast(self) -> None:
        """`match` takes less than 20 microseconds."""
        self._check("cost", "test_match_is_fast")

    def test_writes_declared(self) -> None:
        """It runs, and `apply` changes only what metadata.writes declares, and no tensor of the loader in place."""
        self._check("changes", "test_writes_declared")

    def test_restores(self) -> None:
        """What is changed at the first half of a pair of events is back after the second, and after an evaluation."""
        self._check("changes", "test_restores")

    def test_restores_after_an_exception(self) -> None:
        """The same if the step in between raises."""
        self._check("changes", "test_restores_after_an_exception")

    def test_no_global_random_draw(self) -> None:
        """Nothing is drawn from the global generators of torch, NumPy and random; own ones follow the run's seed."""
        self._check("draws", "test_no_global_random_draw")

    def test_arguments(self) -> None:
        """The constructor refuses nonsense; repr and equality are sane."""
        self._check("arguments", "test_arguments")

    def test_state_dict(self) -> None:
        """state_dict is tensors and JSON, independent of the live state, and can be loaded back."""
        self._check("saving", "test_state_dict")

    def test_resume(self) -> None:
        """A run resumed twice ends like the uninterrupted one."""
        self._check("saving", "test_resume")

    def test_two_instances(self) -> None:
        """Two instances work in one run, and in two runs at the same time, or are refused."""
        self._check("instances", "test_two_instances")

    def test_second_run(self) -> None:
        """One instance in two runs, one after the other, is as good as two."""
        self._check("instances", "test_second_run")

    def test_batches(self) -> None:
        """Tuple, list, dict and nested batches work, or are refused in `validate`."""
        self._check("batches", "test_batches")

    def test_ragged_batches(self) -> None:
        """A smaller last batch, batches of one row, and a run without a match work."""
        self._check("batches", "test_ragged_batches")

    def test_microbatches(self) -> None:
        """Batches split into microbatches work, even if the last is smaller."""
        self._check("batches", "test_microbatches")

    def test_autocast(self) -> None:
        """bf16 autocast works."""
        self._check("execution", "test_autocast")

    def test_order_independent(self) -> None:
        """Both orders with each other algorithm give the same results, unless one declares the order."""
        self._check("orders", "test_order_independent")

    def test_compile(self) -> None:
        """A model wrapped by torch.compile works, if the tag `compile` says so."""
        self._check("execution", "test_compile")

    def test_unmatched_cost(self) -> None:
        """An event that is not listed costs less than 0.2 microseconds more than without the algorithm."""
        self._check("cost", "test_unmatched_cost")

    def _check(self, module: str, check: str) -> None:
        """Run a check, restore generators and threads, and raise if a rule was broken."""
        __tracebackhide__ = True
        if importlib.util.find_spec("torch") is None:
            pytest.skip("torch is not installed; the checks of an algorithm train with it")
        checks = importlib.import_module(f".checks.{module}", __package__)
        with _parts().calm():
            fault = _judged(self, check, getattr(checks, check))
        if fault is not None:
            who = type(self.make_algorithm()).__name__
            raise BrokenRule(who, check, ALGORITHM_RULES[check], fault.seen) from fault.cause


def _judged(kit: AlgorithmConformance, check: str, judge: Callable[[AlgorithmConformance], Any]) -> Any:
    """Return the fault that a check finds; a refusal of the kit's parts is reported by one check, the others skip."""
    __tracebackhide__ = True
    raised, fault = None, None
    try:
        fault = judge(kit)
    except (EngineError, ValueError, TypeError) as error:
        raised = error
    cause = raised or (fault.cause if fault is not None else None)
    if isinstance(cause, (EngineError, ValueError, TypeError)):
        refusal = importlib.import_module(".runs", __package__).refusal_of(kit)
        if refusal is not None and check == "test_writes_declared":
            return refusal
        if refusal is not None:
            pytest.skip("it refuses the kit's own parts; test_writes_declared says how")
    if raised is not None:
        raise raised
    return fault


def _parts() -> Any:
    """Import what needs torch only when needed."""
    return importlib.import_module(".parts", __package__)
