"""The conformance kit for passes: the core's own keep its rules, and each fault is caught by exactly one check."""

import pytest

from engine_core import passes
from engine_core_author import BrokenRule, PassConformance

from .conformance.faulty_passes import PASSES, Known, known_first, known_only

CHECKS = [name for name in vars(PassConformance) if name.startswith("test_")]


class Kit(PassConformance):
    def __init__(self, function):
        self.function = function

    def make_pass(self):
        return self.function

    def make_algorithms(self):
        return [Known()]


def caught(function):
    """Return the checks that find something in a pass."""
    found = []
    for check in CHECKS:
        try:
            getattr(Kit(function), check)()
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


def test_each_check_has_a_fault_that_it_catches():
    assert set(PASSES.values()) == set(CHECKS)
