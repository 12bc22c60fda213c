"""Each fault is caught by the check made for it, and by no other of a sixth of them; what keeps all rules, by none."""

import pytest

from engine_core import passes
from engine_core_author import BrokenRule, PassConformance

from .conformance import faulty_promises, faulty_runs  # noqa: F401  their classes enter the table
from .conformance.faulty_passes import PASSES, Known, known_first, known_only
from .conformance.honest import HONEST, CountEvents, NoisyLoss, ScaleGradients, SmoothTargets, SoftRectifiers
from .conformance.kits import CHECKS, Kit, outcomes, with_outcome
from .conformance.subjects import ALSO, CLASSES, AtLoss, Counting, OfAPair

of_one_that_divides_by_zero = pytest.mark.filterwarnings("ignore:std", "ignore:the training loss is nan")


@of_one_that_divides_by_zero
@pytest.mark.parametrize(("cls", "check"), CLASSES.items())
def test_a_faulty_algorithm_is_caught_by_the_check_made_for_it(cls, check):
    assert outcomes(Kit(getattr(cls, "make", cls)), [check]) == {check: f"broken: {check} by {cls.__name__}"}


@pytest.mark.full
@of_one_that_divides_by_zero
@pytest.mark.parametrize(("place", "cls"), [pytest.param(*each, id=each[1].__name__) for each in enumerate(CLASSES)])
def test_a_faulty_algorithm_is_caught_by_no_unexpected_check_of_a_sixth_of_them(place, cls):
    checks = CHECKS[place % 6 :: 6]
    assert {*with_outcome(Kit(getattr(cls, "make", cls)), "broken", checks)} == {CLASSES[cls], *ALSO[cls]} & {*checks}


@pytest.mark.parametrize("cls", [AtLoss, *(pytest.param(cls, marks=pytest.mark.full) for cls in (Counting, OfAPair))])
def test_without_the_fault_nothing_is_caught(cls):
    assert with_outcome(Kit(cls), "broken") == []


def test_each_check_has_a_fault_that_it_catches():
    assert set(CLASSES.values()) == set(CHECKS)


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


OF_PASSES = [name for name in vars(PassConformance) if name.startswith("test_")]


class OfPass(PassConformance):
    def __init__(self, function):
        self.function = function

    def make_pass(self):
        return self.function

    def make_algorithms(self):
        return [Known()]


def caught(function):
    """Return the checks that find something in a pass."""
    found = []
    for check in OF_PASSES:
        try:
            getattr(OfPass(function), check)()
        except BrokenRule as error:
            found.append((error.who, error.check))
        except pytest.skip.Exception:
            pass
    return found


@pytest.mark.parametrize(("function", "check"), PASSES.items(), ids=[f.__name__ for f in PASSES])
def test_a_faulty_pass_is_caught_by_the_check_made_for_it_and_by_no_other(function, check):
    assert caught(function) == [(passes.name_of(function), check)]


@pytest.mark.parametrize("function", [known_first, known_only])
def test_an_honest_pass_passes(function):
    assert caught(function) == []


@pytest.mark.parametrize("name", ["set_filo_order", "apply_declared_order", "warn_if_multiple_loss_interpolation"])
def test_the_passes_of_the_core_keep_the_rules(name):
    assert caught(getattr(passes, name)) == []


def test_each_check_of_a_pass_has_a_fault_that_it_catches():
    assert set(PASSES.values()) == set(OF_PASSES)
