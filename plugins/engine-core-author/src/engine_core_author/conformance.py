"""What plugin authors subclass to check an algorithm or a pass. Imports no torch; the checks of an algorithm do."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from engine_core.errors import EngineError, MatchError
from engine_core.passes import name_of

from .kit import AlgorithmKit, Fault, PassKit
from .rules import ALGORITHM_RULES, PASS_RULES, BrokenRule, Rule


class _Check:
    """Becomes, under the name that the class gives it, a test that runs the check of that name."""

    def __init__(self, run: Callable[[Any, str], None], rules: Mapping[str, Rule]) -> None:
        self._run, self._rules = run, rules

    def __set_name__(self, owner: type, name: str) -> None:
        run = self._run

        def test(kit: Any) -> None:
            __tracebackhide__ = True
            run(kit, name)

        test.__name__, test.__qualname__ = name, f"{owner.__qualname__}.{name}"
        test.__doc__ = self._rules[name].says
        setattr(owner, name, test)


def _of_algorithm(module: str) -> Any:
    """Return a check of an algorithm, restoring generators and threads; `module` is the one in `checks` that has it."""

    def run(kit: AlgorithmKit, check: str) -> None:
        __tracebackhide__ = True
        if importlib.util.find_spec("torch") is None:
            pytest.skip("torch is not installed; the checks of an algorithm train with it")
        checks = importlib.import_module(f".checks.{module}", __package__)
        with importlib.import_module(".runs", __package__).calm():
            fault = _judged(kit, check, getattr(checks, check))
        if fault is not None:
            who = type(kit.make_algorithm()).__name__
            raise BrokenRule(who, check, ALGORITHM_RULES[check], fault.seen) from fault.cause

    return _Check(run, ALGORITHM_RULES)


def _judged(kit: AlgorithmKit, check: str, judge: Callable[[AlgorithmKit], Any]) -> Any:
    """Return the fault that a check finds; a refusal of the kit's parts is reported by one check, the others skip."""
    __tracebackhide__ = True
    raised, fault = None, None
    try:
        fault = judge(kit)
    except (EngineError, ValueError, TypeError) as error:
        raised = error
    cause = raised or (fault.cause if fault is not None else None)
    if isinstance(cause, MatchError):
        pytest.skip("the engine refuses an answer of its match; test_match_returns_bool says where")
    if isinstance(cause, (EngineError, ValueError, TypeError)):
        refusal = importlib.import_module(".runs", __package__).refusal_of(kit)
        if refusal is not None and check == "test_writes_declared":
            return refusal
        if refusal is not None:
            pytest.skip("it refuses the kit's own parts; test_writes_declared says how")
    if raised is not None:
        raise raised
    return fault


def _check_pass(kit: PassKit, check: str) -> None:
    __tracebackhide__ = True
    fault: Fault | None = getattr(importlib.import_module(".checks.passes", __package__), check)(kit)
    if fault is not None:
        raise BrokenRule(name_of(kit.make_pass()), check, PASS_RULES[check], fault.seen) from fault.cause


class AlgorithmConformance(AlgorithmKit):
    """The checks that each algorithm for engine-core has to pass, as a test class for pytest.

    Subclass it under a name that pytest collects, and say how to make the algorithm; the rest may be overridden. Each
    check trains tiny nets on the CPU, and fails with the rule that was broken, what was seen, and why it matters.

    Example:
        >>> class TestHalve(AlgorithmConformance):
        ...     def make_algorithm(self):
        ...         return Halve(factor=0.5)
    """

    test_metadata = _of_algorithm("declarations")
    test_match_returns_bool = _of_algorithm("matching")
    test_match_is_pure = _of_algorithm("matching")
    test_match_only_declared_events = _of_algorithm("matching")
    test_finish = _of_algorithm("matching")
    test_match_is_fast = _of_algorithm("cost")
    test_writes_declared = _of_algorithm("changes")
    test_restores = _of_algorithm("changes")
    test_restores_after_an_exception = _of_algorithm("changes")
    test_no_global_random_draw = _of_algorithm("draws")
    test_arguments = _of_algorithm("arguments")
    test_repr = _of_algorithm("arguments")
    test_state_dict = _of_algorithm("saving")
    test_resume = _of_algorithm("saving")
    test_two_instances = _of_algorithm("instances")
    test_second_run = _of_algorithm("instances")
    test_batches = _of_algorithm("batches")
    test_ragged_batches = _of_algorithm("batches")
    test_microbatches = _of_algorithm("batches")
    test_two_ranks = _of_algorithm("spreading")
    test_needs = _of_algorithm("loops")
    test_autocast = _of_algorithm("execution")
    test_order_independent = _of_algorithm("orders")
    test_compile = _of_algorithm("execution")
    test_unmatched_cost = _of_algorithm("cost")


class PassConformance(PassKit):
    """The checks that each pass for engine-core has to pass, as a test class for pytest.

    Subclass it under a name that pytest collects. The pass is tried on many lists of algorithms: empty, of one, with
    several of a class, of its subclasses, and with unknown ones.

    Example:
        >>> class TestSortHalveLast(PassConformance):
        ...     def make_pass(self):
        ...         return sort_halve_last
    """

    test_metadata = _Check(_check_pass, PASS_RULES)
    test_total = _Check(_check_pass, PASS_RULES)
    test_stable = _Check(_check_pass, PASS_RULES)
    test_idempotent = _Check(_check_pass, PASS_RULES)
    test_deterministic = _Check(_check_pass, PASS_RULES)
    test_loses_nobody = _Check(_check_pass, PASS_RULES)
    test_fast = _Check(_check_pass, PASS_RULES)
