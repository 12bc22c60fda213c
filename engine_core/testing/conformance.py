"""What plugin authors subclass to check an algorithm or a pass. Imports no torch; the checks of an algorithm do."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import pytest

from ..errors import EngineError
from ..passes import name_of
from .kit import AlgorithmKit, Fault, PassKit
from .rules import ALGORITHM_RULES, PASS_RULES, BrokenRule


def _of_algorithm(module: str, check: str) -> Callable[[AlgorithmKit], None]:
    """Return a test that runs a check, restores generators and threads, and raises if the rule was broken."""

    def test(kit: AlgorithmKit) -> None:
        __tracebackhide__ = True
        if importlib.util.find_spec("torch") is None:
            pytest.skip("torch is not installed; the checks of an algorithm train with it")
        checks = importlib.import_module(f".checks.{module}", __package__)
        with importlib.import_module(".runs", __package__).calm():
            fault = _judged(kit, check, getattr(checks, check))
        if fault is not None:
            who = type(kit.make_algorithm()).__name__
            raise BrokenRule(who, check, ALGORITHM_RULES[check], fault.seen) from fault.cause

    test.__name__, test.__doc__ = check, ALGORITHM_RULES[check].says
    return test


def _judged(kit: AlgorithmKit, check: str, judge: Callable[[AlgorithmKit], Any]) -> Any:
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


def _of_pass(check: str) -> Callable[[PassKit], None]:
    """Return a test that runs a check, and raises if the rule was broken."""

    def test(kit: PassKit) -> None:
        __tracebackhide__ = True
        fault: Fault | None = getattr(importlib.import_module(".checks.passes", __package__), check)(kit)
        if fault is not None:
            raise BrokenRule(name_of(kit.make_pass()), check, PASS_RULES[check], fault.seen) from fault.cause

    test.__name__, test.__doc__ = check, PASS_RULES[check].says
    return test


class AlgorithmConformance(AlgorithmKit):
    """The checks that each algorithm for engine-core has to pass, as a test class for pytest.

    Subclass it under a name that pytest collects, and say how to make the algorithm; the rest may be overridden. Each
    check trains tiny nets on the CPU, and fails with the rule that was broken, what was seen, and why it matters.

    Example:
        >>> class TestHalve(AlgorithmConformance):
        ...     def make_algorithm(self):
        ...         return Halve(factor=0.5)
    """

    test_metadata = _of_algorithm("declarations", "test_metadata")
    test_match_is_pure = _of_algorithm("matching", "test_match_is_pure")
    test_match_only_declared_events = _of_algorithm("matching", "test_match_only_declared_events")
    test_match_is_fast = _of_algorithm("cost", "test_match_is_fast")
    test_writes_declared = _of_algorithm("changes", "test_writes_declared")
    test_restores = _of_algorithm("changes", "test_restores")
    test_restores_after_an_exception = _of_algorithm("changes", "test_restores_after_an_exception")
    test_no_global_random_draw = _of_algorithm("draws", "test_no_global_random_draw")
    test_arguments = _of_algorithm("arguments", "test_arguments")
    test_state_dict = _of_algorithm("saving", "test_state_dict")
    test_resume = _of_algorithm("saving", "test_resume")
    test_two_instances = _of_algorithm("instances", "test_two_instances")
    test_second_run = _of_algorithm("instances", "test_second_run")
    test_batches = _of_algorithm("batches", "test_batches")
    test_ragged_batches = _of_algorithm("batches", "test_ragged_batches")
    test_microbatches = _of_algorithm("batches", "test_microbatches")
    test_autocast = _of_algorithm("execution", "test_autocast")
    test_order_independent = _of_algorithm("orders", "test_order_independent")
    test_compile = _of_algorithm("execution", "test_compile")
    test_unmatched_cost = _of_algorithm("cost", "test_unmatched_cost")


class PassConformance(PassKit):
    """The checks that each pass for engine-core has to pass, as a test class for pytest.

    Subclass it under a name that pytest collects. The pass is tried on many lists of algorithms: empty, of one, with
    several of a class, of its subclasses, and with unknown ones.

    Example:
        >>> class TestSortHalveLast(PassConformance):
        ...     def make_pass(self):
        ...         return sort_halve_last
    """

    test_metadata = _of_pass("test_metadata")
    test_total = _of_pass("test_total")
    test_stable = _of_pass("test_stable")
    test_idempotent = _of_pass("test_idempotent")
    test_deterministic = _of_pass("test_deterministic")
    test_loses_nobody = _of_pass("test_loses_nobody")
    test_fast = _of_pass("test_fast")
