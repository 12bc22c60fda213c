import pytest

from engine_core import Engine, Event, Logger, State, passes
from engine_core.errors import OrderWarning

from .parts import A, B, C, made, order_at


def test_before_and_after_name_registered_names_and_absent_ones_are_not_a_constraint():
    first, last = made("First", before=("a", "some_name", "nobody")), made("Last", after=("first", "a", "@nothing"))
    algorithms = [last, made("Named", name="some_name"), A(), first]
    assert order_at("init", algorithms) == ["First", "Named", "A", "Last"]


def test_a_tag_means_all_others_that_have_it():
    tagged = [made("Tagged", tags=("loss",)) for _ in range(2)]
    first = made("First", tags=("loss",), before=("@loss",))
    assert order_at("init", [tagged[0], A(), first, tagged[1]]) == ["A", "First", "Tagged", "Tagged-2"]


def test_the_declared_order_is_literal_on_undo_events_too():
    first = made("First", before=("b",))
    for event, listed in (("before_loss", [B(), first]), ("after_loss", [B(), first]), ("after_loss", [first, B()])):
        assert order_at(event, listed) == ["First", "B"]


def test_an_order_is_declared_only_for_events_that_both_list():
    first = made("First", events=("fit_start",), before=("elsewhere", "b"))
    elsewhere = made("Elsewhere", events=("init",), before=("first",))
    assert order_at("fit_start", [elsewhere, B(), first]) == ["First", "B"]


def test_a_requirement_is_met_by_an_algorithm_that_does_not_match_at_this_event():
    needy = made("Needy", requires=("elsewhere",), events=("init",))
    assert order_at("init", [needy, made("Elsewhere", events=("fit_end",))]) == ["Needy"]


def test_explicit_order_has_the_last_word():
    order = passes.explicit_order({"after_loss": ["a", "B"], "init": ["c"]})
    assert order_at("after_loss", [A(), B(), C()], order) == ["C", "A", "B"]
    assert order_at("init", [A(), B(), C()], order) == ["A", "B", "C"]
    assert order_at("fit_start", [A(), B(), C()], order) == ["A", "B", "C"]


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


def test_a_name_in_an_explicit_order_may_come_with_the_first_algorithms():
    engine = Engine(State(), Logger(), passes.explicit_order({"init": ["b", "a"]}))
    engine.state.algorithms.extend([A(), B()])
    assert list(engine.run_event("init")) == ["B/INIT", "A/INIT"]


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
