"""The repr of an algorithm is its constructor's call."""

import copy
import dataclasses
import inspect
import pickle

import pytest

from .parts import A


class Scale(A):
    def __init__(self, scale=0.5, every: int = 1, *, key="x"):
        self.scale, self._every = float(scale), every
        self.held = (key,)  # found nowhere under its name: shown as it was given


class Needs(A):
    def __init__(self, model, sizes=(), **options):
        pass


class Many(A):
    def __init__(self, *names):
        pass


class Odd:
    def __repr__(self):
        raise ZeroDivisionError


def named():
    pass


@pytest.mark.parametrize(
    ("algorithm", "shown"),
    [
        (A(), "A()"),
        (Scale(), "Scale()"),
        (Scale(every=1.0, key="x"), "Scale()"),
        (Scale(key="y", every=3), "Scale(every=3, key='y')"),
        (Scale(2), "Scale(scale=2.0)"),
        (Needs(object(), [1, 2]), "Needs(model=<object>, sizes=[1, 2])"),
        (Needs(named, (int, object())), "Needs(model=named, sizes=(int, <object>))"),
        (Needs(None, deep=[None]), "Needs(model=None, **{'deep': [None]})"),
        (Needs(Odd()), "Needs(model=<Odd>)"),
        (Needs(Scale(2)), "Needs(model=Scale(scale=2.0))"),
        (Many("a", "b"), "Many(*('a', 'b'))"),
    ],
)
def test_it_shows_what_differs_from_the_defaults_in_the_constructors_order_and_no_address(algorithm, shown):
    assert repr(algorithm) == shown


def test_attributes_are_shown_as_they_are_now_and_long_ones_cut():
    algorithm = Scale()
    assert [*vars(Needs(1)), *vars(A())] == []  # what was given is not among the attributes that others read
    algorithm.scale, algorithm._every = 3.0, 7
    assert repr(algorithm) == "Scale(scale=3.0, every=7)"
    assert len(repr(Needs("x" * 10_000, [[i] * 1000 for i in range(1000)]))) < 500


def test_a_copy_shows_the_same_and_so_does_one_that_was_pickled():
    for made in (copy.copy(Needs(1)), copy.deepcopy(Needs(1)), pickle.loads(pickle.dumps(Needs(1)))):
        assert repr(made) == "Needs(model=1)"


def test_a_frozen_dataclass_can_be_an_algorithm_and_one_that_was_not_constructed_can_be_shown():
    @dataclasses.dataclass(frozen=True, repr=False)
    class Frozen(A):
        scale: float = 1.0

    assert (repr(Frozen(2.0)), repr(object.__new__(Needs))) == ("Frozen(scale=2.0)", "Needs()")


def test_a_repr_of_ones_own_is_left_alone():
    class Own(Scale):
        def __repr__(self):
            return "mine"

    assert repr(Own(2)) == "mine"


def test_a_class_has_the_signature_of_its_constructor_and_takes_no_other_arguments():
    class Heir(Scale):
        pass

    assert [str(inspect.signature(cls)) for cls in (A, Many, Heir)] == [
        "()",
        "(*names)",
        "(scale=0.5, every: int = 1, *, key='x')",
    ]
    with pytest.raises(TypeError, match=r"A\(\) takes no arguments"):
        A(1)
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        Scale(scala=1)
