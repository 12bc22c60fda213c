"""The kit for any algorithm, and what its checks come to."""

import pytest

from engine_core_author import AlgorithmConformance, BrokenRule

from .honest import NoisyLoss

CHECKS = [name for name in vars(AlgorithmConformance) if name.startswith("test_")]


class Kit(AlgorithmConformance):
    """The kit for what `make` returns, beside one of each of the others."""

    def __init__(self, make, others=(NoisyLoss,)):
        self.make, self.others = make, others

    def make_algorithm(self):
        return self.make()

    def make_others(self):
        return [other() for other in self.others]


def outcomes(kit, checks=CHECKS):
    """Return what each check comes to: `passed`, whose rule is `broken`, or why it was `skipped`."""
    found = {}
    for check in checks:
        try:
            getattr(kit, check)()
            found[check] = "passed"
        except BrokenRule as error:
            found[check] = f"broken: {error.check} by {error.who}"
        except pytest.skip.Exception as skipped:
            found[check] = f"skipped: {skipped}"
    return found


def with_outcome(kit, outcome, checks=CHECKS):
    """Return the checks that come to this."""
    return [check for check, found in outcomes(kit, checks).items() if found.partition(":")[0] == outcome]
