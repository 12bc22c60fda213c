import itertools
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_core.errors import OrderError
from engine_core.passes import Edge, stable_sort, who_moved

NAMES = ("a", "b", "c", "d", "e")


@st.composite
def acyclic(draw):
    """Names in some order, and edges that agree with another order of them."""
    names = draw(st.permutations(NAMES))
    hidden = draw(st.permutations(NAMES))
    pairs = draw(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)).filter(lambda p: p[0] < p[1]), max_size=8))
    return names, [Edge(hidden[i], hidden[j], "test") for i, j in pairs]


def holds(order, edges):
    return all(order.index(edge.first) < order.index(edge.second) for edge in edges)


@settings(max_examples=60)
@given(acyclic())
def test_of_all_orders_that_respect_the_edges_it_is_the_first_by_given_places(case):
    names, edges = case
    allowed = [order for order in permutations(names) if holds(order, edges)]
    first = min(allowed, key=lambda order: [names.index(name) for name in order])
    assert tuple(stable_sort(names, edges)) == tuple(stable_sort(names, edges[::-1] * 2)) == first


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)), max_size=8))
def test_it_refuses_exactly_what_no_order_can_satisfy(pairs):
    edges = [Edge(first, second, "test") for first, second in pairs]
    possible = any(holds(order, edges) for order in permutations(NAMES))
    if possible:
        assert holds(stable_sort(NAMES, edges), edges)
    else:
        with pytest.raises(OrderError, match="cycle"):
            stable_sort(NAMES, edges)


def test_edges_of_names_that_are_absent_are_not_constraints():
    assert stable_sort(["b", "a"], [Edge("a", "x", "a"), Edge("x", "b", "x")]) == ["b", "a"]


def test_a_cycle_is_printed_with_the_declaration_of_each_edge():
    edges = [Edge("a", "b", "A"), Edge("b", "c", "B"), Edge("c", "a", "C"), Edge("c", "d", "D"), Edge("e", "a", "E")]
    with pytest.raises(OrderError) as refusal:
        stable_sort(NAMES, edges)
    assert str(refusal.value).splitlines() == [
        "the declared order has a cycle, remove one of these:",
        "  a before b: declared by A",
        "  b before c: declared by B",
        "  c before a: declared by C",
    ]


@settings(max_examples=60)
@given(st.lists(st.sampled_from("abcdef"), unique=True), st.lists(st.sampled_from("abcdef"), unique=True))
def test_as_few_as_possible_moved_and_the_rest_kept_their_order(before, after):
    moved = who_moved(before, after)
    common = [name for name in after if name in before]
    assert set(moved) <= set(common)
    stayed = [name for name in common if name not in moved]
    assert stayed == [name for name in before if name in stayed]
    kept = [
        size
        for size in range(len(common) + 1)
        for some in itertools.combinations(common, size)
        if list(some) == [name for name in before if name in some]
    ]
    assert len(stayed) == max(kept)


def test_of_two_neighbours_the_one_that_came_forward_has_moved():
    assert who_moved(["a", "b", "c"], ["b", "a", "c"]) == ["b"]
