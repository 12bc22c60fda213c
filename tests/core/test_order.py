import pytest

from engine_core import Algorithm, AlgorithmMetadata, Engine, Event, Logger, State, passes
from engine_core.errors import EngineError, OrderError, OrderWarning

UNDO = {
    Event.AFTER_DATALOADER,
    Event.AFTER_FORWARD,
    Event.AFTER_LOSS,
    Event.AFTER_BACKWARD,
    Event.AFTER_TRAIN_BATCH,
    Event.EVAL_AFTER_FORWARD,
}


class Always(Algorithm):
    def match(self, event, state):
        return True

    def apply(self, event, state, logger):
        return None


class A(Always):
    pass


class B(Always):
    pass


class C(Always):
    pass


def order_at(event, algorithms, algorithm_passes=None):
    engine = Engine(State(algorithms=algorithms), Logger(), algorithm_passes)
    return [trace.name for trace in engine.run_event(event).values()]


def refusal(algorithms):
    with pytest.raises(EngineError) as refused:
        Engine(State(algorithms=algorithms), Logger())
    return str(refused.value)


@pytest.mark.parametrize("event", Event)
def test_algorithms_run_in_the_users_order_and_undo_in_reverse(event):
    expected = ["C", "B", "A"] if event in UNDO else ["A", "B", "C"]
    assert order_at(event, [A(), B(), C()]) == expected


def test_before_and_after_name_registered_names():
    class MustBeFirst(Always):
        metadata = AlgorithmMetadata(before=("a", "some_name"))

    class Named(Always):
        metadata = AlgorithmMetadata(name="some_name")

    class MustBeLast(Always):
        metadata = AlgorithmMetadata(after=("must_be_first", "a"))

    algorithms = [MustBeLast(), Named(), A(), MustBeFirst()]
    assert order_at("init", algorithms) == ["MustBeFirst", "Named", "A", "MustBeLast"]


def test_a_tag_means_all_others_that_have_it():
    class Tagged(Always):
        metadata = AlgorithmMetadata(tags=("loss",))

    class First(Always):
        metadata = AlgorithmMetadata(tags=("loss",), before=("@loss",))

    assert order_at("init", [Tagged(), A(), First(), Tagged()]) == ["A", "First", "Tagged", "Tagged-2"]


def test_absent_names_are_not_a_constraint():
    class Wishful(Always):
        metadata = AlgorithmMetadata(before=("nobody", "@nothing"), after=("no_one",))

    assert order_at("init", [A(), Wishful()]) == ["A", "Wishful"]


def test_the_declared_order_is_literal_on_undo_events_too():
    class First(Always):
        metadata = AlgorithmMetadata(before=("b",))

    assert order_at("before_loss", [B(), First()]) == ["First", "B"]
    assert order_at("after_loss", [B(), First()]) == ["First", "B"]
    assert order_at("after_loss", [First(), B()]) == ["First", "B"]


def test_an_order_is_declared_only_for_events_that_both_list():
    class First(Always):
        metadata = AlgorithmMetadata(events=("fit_start",), before=("elsewhere", "b"))

    class Elsewhere(Always):
        metadata = AlgorithmMetadata(events=("init",), before=("first",))

    assert order_at("fit_start", [Elsewhere(), B(), First()]) == ["First", "B"]


def test_a_cycle_is_refused_when_the_engine_is_made_with_what_each_algorithm_declared():
    class First(Always):
        metadata = AlgorithmMetadata(before=("second",), events=("init", "after_loss"))

    class Second(Always):
        metadata = AlgorithmMetadata(before=("first",), events=("after_loss",))

    with pytest.raises(OrderError) as refusal:
        Engine(State(algorithms=[A(), First(), Second()]), Logger())
    assert str(refusal.value).splitlines() == [
        "the declared order has a cycle, remove one of these:",
        "  First before Second: declared by First (before='second')",
        "  Second before First: declared by Second (before='first')",
    ]
    assert refusal.value.__notes__ == ["at AFTER_LOSS"]


def test_a_conflict_is_refused_with_both_registered_names():
    class Mix(Always):
        metadata = AlgorithmMetadata(name="mixup", conflicts=("@cutting",))

    class CutMix(Always):
        metadata = AlgorithmMetadata(tags=("cutting",))

    assert refusal([CutMix(), Mix()]) == (
        "'mixup' (Mix) can't run together with 'cut_mix' (CutMix): it declares conflicts='@cutting'; "
        "leave one of them out"
    )


def test_a_missing_requirement_is_refused_with_its_name():
    class Needy(Always):
        metadata = AlgorithmMetadata(requires=("a", "none_has"))

    assert refusal([A(), Needy()]) == (
        "'needy' (Needy) requires 'none_has', and no such algorithm is listed; no installed distribution ships it; "
        "install one that does, and add it"
    )


def test_a_requirement_is_met_by_an_algorithm_that_does_not_match_at_this_event():
    class Needy(Always):
        metadata = AlgorithmMetadata(requires=("elsewhere",), events=("init",))

    class Elsewhere(Always):
        metadata = AlgorithmMetadata(events=("fit_end",))

    assert order_at("init", [Needy(), Elsewhere()]) == ["Needy"]


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


def test_a_pass_by_sort_to_front_or_back_is_final_where_it_matters():
    def c_first(algorithms, event):
        return passes.sort_to_front(algorithms, C)

    def a_last(algorithms, event):
        return passes.sort_to_back(algorithms, A)

    assert order_at("after_dataloader", [A(), C(), B()], c_first) == ["C", "B", "A"]
    assert order_at("before_dataloader", [A(), C(), B()], a_last) == ["C", "B", "A"]


def test_a_pass_inserted_in_front_runs_before_the_list_is_reversed():
    def c_first(algorithms, event):
        return passes.sort_to_front(algorithms, C)

    assert order_at("after_dataloader", [A(), C(), B()], (c_first, 0)) == ["B", "A", "C"]


def test_a_plain_pass_sees_what_matched_at_each_event():
    seen = []

    def look(algorithms, event):
        seen.append(([type(a).__name__ for a in algorithms], event))
        return algorithms

    engine = Engine(State(algorithms=[A(), B()]), Logger(), look)
    engine.run_event("init")
    engine.run_event("after_loss")
    assert seen == [(["A", "B"], Event.INIT), (["B", "A"], Event.AFTER_LOSS)]


def test_passes_run_for_a_single_algorithm_and_not_for_none():
    seen = []
    engine = Engine(State(algorithms=[A()]), Logger(), lambda algorithms, event: seen.append(event) or algorithms)
    engine.run_event("init")
    engine.state.algorithms.clear()
    engine.run_event("fit_start")
    assert seen == [Event.INIT]
