"""The conformance kit finds nothing in algorithms that keep all rules."""

import pytest

from .conformance.honest import (
    HONEST,
    CountEvents,
    NoisyLoss,
    ScaleGradients,
    SmoothTargets,
    SoftRectifiers,
)
from .conformance.kits import Kit, outcomes

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


@pytest.mark.parametrize("cls", [HONEST[0], *(pytest.param(cls, marks=pytest.mark.full) for cls in HONEST[1:])])
def test_an_honest_algorithm_passes_each_check_that_has_something_to_judge(cls):
    found = outcomes(Kit(cls, [other for other in HONEST if other is not cls]))

    assert [check for check, outcome in found.items() if outcome != "passed"] == SKIPPED[cls]
