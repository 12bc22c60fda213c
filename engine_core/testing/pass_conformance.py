"""What a plugin author subclasses to check a pass. Needs no torch, unless the arranged algorithms do."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from ..algorithm import Algorithm
from ..passes import AlgorithmPass, name_of
from .others import installed_algorithms
from .rules import PASS_RULES, BrokenRule

__all__ = ["PassConformance"]


class PassConformance:
    """The checks that each pass for engine-core has to pass, as a test class for pytest.

    Subclass it under a name that pytest collects. The pass is tried on many lists of algorithms: empty, of one, with
    several of a class, of its subclasses, and with unknown ones.

    Example:
        >>> class TestSortHalveLast(PassConformance):
        ...     def make_pass(self):
        ...         return sort_halve_last
    """

    def make_pass(self) -> AlgorithmPass:
        """Return the pass."""
        raise NotImplementedError(f"{type(self).__name__} has to return the pass in make_pass(self)")

    def make_algorithms(self) -> Sequence[Algorithm]:
        """Return algorithms to arrange; default: one of each that is installed and can be made without arguments.

        If the pass handles an algorithm that needs arguments, return one. The kit adds unknown algorithms, and second
        instances and subclasses of those returned.
        """
        return installed_algorithms()

    def test_metadata(self) -> None:
        """It is marked, its metadata is valid, and its name the entry point's."""
        self._check("test_metadata")

    def test_total(self) -> None:
        """It returns a list for each list."""
        self._check("test_total")

    def test_stable(self) -> None:
        """What it does not distinguish keeps its order."""
        self._check("test_stable")

    def test_idempotent(self) -> None:
        """On its own result it changes nothing."""
        self._check("test_idempotent")

    def test_deterministic(self) -> None:
        """It gives the same order each time."""
        self._check("test_deterministic")

    def test_loses_nobody(self) -> None:
        """It returns all that it was given, once each, and nothing else."""
        self._check("test_loses_nobody")

    def test_fast(self) -> None:
        """It takes less than a millisecond, or less than 50 microseconds if it is not pure."""
        self._check("test_fast")

    def _check(self, check: str) -> None:
        """Run a check and raise if a rule was broken."""
        __tracebackhide__ = True
        checks = importlib.import_module(".checks.passes", __package__)
        fault = getattr(checks, check)(self)
        if fault is not None:
            raise BrokenRule(name_of(self.make_pass()), check, PASS_RULES[check], fault.seen) from fault.cause
