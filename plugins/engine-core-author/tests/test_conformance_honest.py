"""The conformance kit finds nothing in algorithms that keep all rules."""

import pytest

from engine_core_author import AlgorithmConformance

from .conformance.honest import (
    HONEST,
    CountEvents,
    NoisyLoss,
    ScaleGradients,
    SmoothTargets,
    SoftRectifiers,
)

CHECKS = [name for name in vars(AlgorithmConformance) if name.startswith("test_")]
PAIRS = ["test_restores", "test_restores_after_an_exception"]
SKIPPED = {
    SoftRectifiers: [*PAIRS, "test_compile"],
    SmoothTargets: [],
    ScaleGradients: [*PAIRS, "test_compile"],
    NoisyLoss: PAIRS,
    CountEvents: [
        "test_match_only_declared_events",
        "test_restores_after_an_exception",
        "test_compile",
        "test_unmatched_cost",
    ],
}


class Kit(AlgorithmConformance):
    def __init__(self, cls):
        self.cls = cls

    def make_algorithm(self):
        return self.cls()

    def make_others(self):
        return [other() for other in HONEST if other is not self.cls]


def outcome(cls, check):
    """Return what a check says of an algorithm: `passed` or `skipped`; a fault is raised."""
    try:
        getattr(Kit(cls), check)()
    except pytest.skip.Exception:
        return "skipped"
    return "passed"


@pytest.mark.parametrize("cls", [HONEST[0], *(pytest.param(cls, marks=pytest.mark.full) for cls in HONEST[1:])])
def test_an_honest_algorithm_passes_each_check_that_has_something_to_judge(cls):
    found = {check: outcome(cls, check) for check in CHECKS}

    assert [check for check in CHECKS if found[check] == "skipped"] == SKIPPED[cls]
