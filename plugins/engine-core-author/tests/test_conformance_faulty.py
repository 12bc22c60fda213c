"""Each faulty algorithm is caught by exactly the check of the conformance kit that is made for its fault."""

import pytest

from engine_core_author import AlgorithmConformance, BrokenRule

from .conformance import (
    faulty_construction,
    faulty_corners,
    faulty_needs,
    faulty_promises,
    faulty_runs,
    faulty_spreading,
)
from .conformance.honest import NoisyLoss
from .conformance.subjects import ALSO, CLASSES, AtLoss, Counting, OfAPair

CHECKS = [name for name in vars(AlgorithmConformance) if name.startswith("test_")]


class Kit(AlgorithmConformance):
    def __init__(self, cls):
        self.cls = cls

    def make_algorithm(self):
        return getattr(self.cls, "make", self.cls)()

    def make_others(self):
        return [NoisyLoss()]


def caught(cls, checks=CHECKS):
    """Return those of the checks that find something in an algorithm."""
    found = []
    for check in checks:
        try:
            getattr(Kit(cls), check)()
        except BrokenRule as error:
            found.append((error.who, error.check))
        except pytest.skip.Exception:
            pass
    return found


of_one_that_divides_by_zero = pytest.mark.filterwarnings("ignore:std", "ignore:the training loss is nan")


@of_one_that_divides_by_zero
@pytest.mark.parametrize(("cls", "check"), CLASSES.items())
def test_a_faulty_algorithm_is_caught_by_the_check_made_for_it(cls, check):
    assert caught(cls, [check]) == [(cls.__name__, check)]


@pytest.mark.full
@of_one_that_divides_by_zero
@pytest.mark.parametrize(("cls", "check"), CLASSES.items())
def test_a_faulty_algorithm_is_caught_by_the_check_made_for_it_and_by_no_unexpected_one(cls, check):
    assert {found for _, found in caught(cls)} == {check, *ALSO[cls]}


@pytest.mark.parametrize("cls", [AtLoss, *(pytest.param(cls, marks=pytest.mark.full) for cls in (Counting, OfAPair))])
def test_without_the_fault_nothing_is_caught(cls):
    assert caught(cls) == []


def test_each_check_has_a_fault_that_it_catches():
    modules = (faulty_construction, faulty_corners, faulty_needs, faulty_promises, faulty_runs, faulty_spreading)
    assert {cls.__module__ for cls in CLASSES} == {module.__name__ for module in modules}
    assert set(CLASSES.values()) == set(CHECKS)
