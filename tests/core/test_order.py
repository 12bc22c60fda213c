"""What decides the order at an event: the list, declarations, nesting, an explicit order; and misspelt names."""

import itertools
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_core import AlgorithmMetadata, Engine, Event, Logger, State, passes
from engine_core.errors import EngineError, OrderError, OrderWarning
from engine_core.passes import Edge, stable_sort

from .parts import A, Always, B, C, made, order_at


def test_before_and_after_name_registered_names_and_absent_ones_are_not_a_constraint():
    first, last = made("First", before=("a", "some_name", "nobody")), made("Last", after=("first", "a", "@nothing"))
    algorithms = [last, made("Named", name="some_name"), A(), first]
    assert order_at("init", algorithms) == ["First", "Named", "A", "Last"]


def test_a_tag_means_all_others_that_have_it():
    tagged = [made("Tagged", tags=("loss",)) for _ in range(2)]
    first = made("First", tags=("loss",), before=("@loss",))
    assert order_at("init", [tagged[0], A(), first, tagged[1]]) == ["A", "First", "Tagged", "Tagged-2"]


def test_the_declared_order_is_literal_on_undo_events_too_and_only_for_events_that_both_list():
    first, second = made("First", before=("b",)), made("Second", events=("init",), before=("a",))
    for event, listed in (("before_loss", [B(), first]), ("after_loss", [B(), first]), ("after_loss", [first, B()])):
        assert order_at(event, listed) == ["First", "B"]
    assert order_at("fit_start", [A(), made("Fit", events=("fit_start",), before=("second",)), second]) == ["A", "Fit"]


def test_a_requirement_is_met_by_an_algorithm_that_does_not_match_at_this_event():
    needy = made("Needy", requires=("elsewhere",), events=("init",))
    assert order_at("init", [needy, made("Elsewhere", events=("fit_end",))]) == ["Needy"]


def test_explicit_order_has_the_last_word_also_for_algorithms_that_come_later():
    order = passes.explicit_order({"after_loss": ["a", "B"], "init": ["c"]})
    assert order_at("after_loss", [A(), B(), C()], order) == ["C", "A", "B"]
    assert order_at("init", [A(), B(), C()], order) == ["A", "B", "C"]
    assert order_at("fit_start", [A(), B(), C()], order) == ["A", "B", "C"]
    engine = Engine(State(), Logger(), passes.explicit_order({"init": ["b", "a"]}))
    engine.state.algorithms.extend([A(), B()])
    assert list(engine.run_event("init")) == ["B/INIT", "A/INIT"]


def test_an_unknown_name_in_an_explicit_order_is_reported_once_per_engine_at_the_line_that_made_it():
    order = passes.explicit_order({"after_loss": ["b", "aa"]})
    with pytest.warns(OrderWarning) as caught:
        engine = Engine(State(algorithms=[A(), B()]), Logger(), order)
    engine.state.algorithms.append(C())
    engine.run_event("after_loss")
    assert [str(warning.message) for warning in caught] == [
        "explicit_order names 'aa' at AFTER_LOSS, but no algorithm here has that name; did you mean 'a'?"
    ]
    assert caught[0].filename == __file__


def test_a_pass_by_sort_to_front_or_back_is_final_unless_it_runs_before_the_list_is_reversed():
    def c_first(algorithms, event):
        return passes.sort_to_front(algorithms, C)

    def a_last(algorithms, event):
        return passes.sort_to_back(algorithms, A)

    assert order_at("after_dataloader", [A(), C(), B()], c_first) == ["C", "B", "A"]
    assert order_at("before_dataloader", [A(), C(), B()], a_last) == ["C", "B", "A"]
    assert order_at("after_dataloader", [A(), C(), B()], (c_first, 0)) == ["B", "A", "C"]


def test_a_plain_pass_sees_what_matched_at_each_event_and_is_not_asked_about_nothing():
    seen = []

    def look(algorithms, event):
        seen.append(([type(a).__name__ for a in algorithms], event))
        return algorithms

    engine = Engine(State(algorithms=[A(), B()]), Logger(), look)
    engine.run_event("init")
    engine.run_event("after_loss")
    engine.state.algorithms = [A()]
    engine.run_event("init")
    engine.state.algorithms.clear()
    engine.run_event("fit_start")
    assert seen == [(["A", "B"], Event.INIT), (["B", "A"], Event.AFTER_LOSS), (["A"], Event.INIT)]


def test_the_outer_one_comes_first_and_on_the_second_half_of_a_pair_last():
    order = ["Smooth", "Mix", "Penalty"]
    algorithms = [made("Smooth", around=("@mixing",)), made("Mix", tags=("mixing",)), made("Penalty", within=("mix",))]
    for event, listed in itertools.product(Event, itertools.permutations(algorithms)):
        assert order_at(event, listed) == (order[::-1] if event.is_after_event else order)


class Stacking(Always):
    """Pushes its name onto a stack, and has to pop its own name again."""

    def __init__(self, name, **metadata):
        self.name, self.metadata = name, AlgorithmMetadata(events=("before_loss", "after_loss"), **metadata)

    def apply(self, event, state, logger):
        if event is Event.BEFORE_LOSS:
            state.batch = [*state.batch, self.name]
        else:
            *state.batch, top = state.batch
            assert top == self.name


def test_what_was_put_into_a_box_comes_out_as_it_went_in():
    outer, inner = Stacking("outer", around=("@inside",)), Stacking("inner", tags=("inside",), within=("@inside",))
    insides = [Stacking(name, tags=("inside",)) for name in ("first", "second")]
    for listed in itertools.permutations([outer, *insides, inner]):
        with Engine(State(algorithms=listed, batch=[]), Logger()) as engine:
            engine.run_event("before_loss")
            assert (engine.state.batch[0], engine.state.batch[-1]) == ("outer", "inner")
            engine.run_event("after_loss")
            assert engine.state.batch == []


def test_explain_names_the_relation():
    with Engine(State(algorithms=[made("Mix"), made("Smooth", around=("mix",))]), Logger()) as engine:
        reasons = [engine.explain(event)[0].why for event in ("before_loss", "after_loss")]
    declared = "declared by Smooth (around='mix')"
    assert reasons == [f"before Mix: {declared}", f"before Smooth: {declared}"]


def at_init(class_name, /, **metadata):
    return made(class_name, events=("init",), **metadata)


def start(*algorithms):
    Engine(State(algorithms=list(algorithms)), Logger()).close()


def test_a_requirement_by_class_name_is_refused_with_the_name_to_write():
    with pytest.raises(EngineError) as error:
        start(at_init("Small", requires=("BigThing",)), at_init("BigThing"))
    assert str(error.value) == (
        "'small' (Small) requires 'BigThing', and no such algorithm is listed; no installed distribution ships it; "
        "did you mean 'big_thing'?"
    )


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
