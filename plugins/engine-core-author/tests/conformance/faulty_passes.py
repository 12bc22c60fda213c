"""Passes with one fault each, under the check of the conformance kit that has to find it."""

import itertools

import torch

from engine_core import Algorithm, algorithm_pass, passes
from engine_core.metadata import PassMetadata

PASSES = {}


class Known(Algorithm):
    """What these passes know."""

    def __init__(self):
        self.seen = []

    def match(self, event, state):
        return False

    def apply(self, event, state, logger):
        pass


class Extra(Known):
    """What one of them adds."""


def caught_by(check):
    """Enter a pass under the check that finds its fault."""

    def enter(function):
        PASSES[function] = check
        return function

    return enter


@algorithm_pass(stage="placement", events=("before_loss", "after_loss"))
def known_first(algorithms, event):
    """Put the known ones first: nothing is wrong with it."""
    return passes.sort_to_front(algorithms, Known)


@algorithm_pass(stage="placement", changes_members=True)
def known_only(algorithms, event):
    """Drop all others, as it declares."""
    return [a for a in algorithms if isinstance(a, Known)]


@caught_by("test_metadata")
def unmarked(algorithms, event):
    return algorithms


@caught_by("test_metadata")
def unvalidated(algorithms, event):
    return algorithms


unvalidated.metadata = PassMetadata.model_construct(name="unvalidated", stage="plcement")


@caught_by("test_metadata")
@algorithm_pass(name="known_last")
def misnamed(algorithms, event):
    return passes.sort_to_back(algorithms, Known)


@caught_by("test_total")
@algorithm_pass()
def returns_nothing(algorithms, event):
    passes.sort_to_front(algorithms, Known)


@caught_by("test_total")
@algorithm_pass()
def fails_on_the_empty_list(algorithms, event):
    return passes.sort_to_front(algorithms, type(algorithms[0]) if isinstance(algorithms[0], Known) else Known)


@caught_by("test_total")
@algorithm_pass()
def fails_on_strangers(algorithms, event):
    return sorted(algorithms, key=lambda a: a.known_place if not isinstance(a, Known) else 0)


@caught_by("test_stable")
@algorithm_pass()
def sorts_by_name(algorithms, event):
    return sorted(algorithms, key=lambda a: type(a).__name__)


@caught_by("test_stable")
@algorithm_pass()
def sorts_by_address(algorithms, event):
    return sorted(algorithms, key=id)


@caught_by("test_idempotent")
@algorithm_pass()
def moves_one_place(algorithms, event):
    place = next((i for i, a in enumerate(algorithms) if isinstance(a, Known)), 0)
    return [*algorithms[: max(0, place - 1)], *algorithms[place : place + 1], *algorithms[max(0, place - 1) : place],
            *algorithms[place + 1 :]]  # fmt: skip


_calls = itertools.count()


@caught_by("test_deterministic")
@algorithm_pass()
def takes_turns(algorithms, event):
    turn = next(_calls) % 2
    return passes.sort_to_front(algorithms, Known) if turn else passes.sort_to_back(algorithms, Known)


@caught_by("test_deterministic")
@algorithm_pass()
def marks_the_algorithms(algorithms, event):
    for place, algorithm in enumerate(algorithms):
        algorithm.place = place
    return passes.sort_to_front(algorithms, Known)


@caught_by("test_deterministic")
@algorithm_pass()
def counts_in_a_list_of_theirs(algorithms, event):
    for algorithm in algorithms:
        if isinstance(algorithm, Known):
            algorithm.seen.append(event)
    return passes.sort_to_front(algorithms, Known)


@caught_by("test_deterministic")
@algorithm_pass(pure=False)
def draws_a_number(algorithms, event):
    torch.rand(())
    return passes.sort_to_front(algorithms, Known)


@caught_by("test_loses_nobody")
@algorithm_pass()
def drops_twins(algorithms, event):
    return [a for place, a in enumerate(algorithms) if type(a) not in map(type, algorithms[:place])]


EXTRA = Extra()


@caught_by("test_loses_nobody")
@algorithm_pass()
def adds_another(algorithms, event):
    return [EXTRA, *(a for a in algorithms if a is not EXTRA)]


@caught_by("test_loses_nobody")
@algorithm_pass(changes_members=True)
def gives_one_twice(algorithms, event):
    return [*algorithms, *(algorithms[-1:] if len({*map(id, algorithms)}) == len(algorithms) else [])]


def tries_all_orders(algorithms, most):
    """Take a time that grows beyond all bounds."""
    for order in itertools.permutations(algorithms[:most]):
        list(order)
    return passes.sort_to_front(algorithms, Known)


@caught_by("test_fast")
@algorithm_pass()
def slow(algorithms, event):
    return tries_all_orders(algorithms, 8)


@caught_by("test_fast")
@algorithm_pass(pure=False)
def slow_in_each_step(algorithms, event):
    return tries_all_orders(algorithms, 7)
