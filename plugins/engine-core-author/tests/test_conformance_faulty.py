"""Each faulty algorithm is caught by exactly the check of the conformance kit that is made for its fault."""

import pytest

from .conformance import (
    faulty_construction,
    faulty_corners,
    faulty_needs,
    faulty_promises,
    faulty_runs,
    faulty_spreading,
)
from .conformance.kits import CHECKS, Kit, outcomes, with_outcome
from .conformance.subjects import ALSO, CLASSES, AtLoss, Counting, OfAPair

of_one_that_divides_by_zero = pytest.mark.filterwarnings("ignore:std", "ignore:the training loss is nan")


@of_one_that_divides_by_zero
@pytest.mark.parametrize(("cls", "check"), CLASSES.items())
def test_a_faulty_algorithm_is_caught_by_the_check_made_for_it(cls, check):
    assert outcomes(Kit(getattr(cls, "make", cls)), [check]) == {check: f"broken: {check} by {cls.__name__}"}


@pytest.mark.full
@of_one_that_divides_by_zero
@pytest.mark.parametrize(("cls", "check"), CLASSES.items())
def test_a_faulty_algorithm_is_caught_by_the_check_made_for_it_and_by_no_unexpected_one(cls, check):
    assert {*with_outcome(Kit(getattr(cls, "make", cls)), "broken")} == {check, *ALSO[cls]}


@pytest.mark.parametrize("cls", [AtLoss, *(pytest.param(cls, marks=pytest.mark.full) for cls in (Counting, OfAPair))])
def test_without_the_fault_nothing_is_caught(cls):
    assert with_outcome(Kit(cls), "broken") == []


def test_each_check_has_a_fault_that_it_catches():
    modules = (faulty_construction, faulty_corners, faulty_needs, faulty_promises, faulty_runs, faulty_spreading)
    assert {cls.__module__ for cls in CLASSES} == {module.__name__ for module in modules}
    assert set(CLASSES.values()) == set(CHECKS)
