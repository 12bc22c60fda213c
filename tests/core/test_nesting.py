"""`around` and `within`: one algorithm does and undoes its work between the two halves of another."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_core import Algorithm, AlgorithmMetadata, Engine, Event, Logger, State
from engine_core.errors import EngineError, OrderError


class Always(Algorithm):
    def match(self, event, state):
        return True

    def apply(self, event, state, logger):
        return None


class Smooth(Always):
    metadata = AlgorithmMetadata(around=("@mixing",))


class Mix(Always):
    metadata = AlgorithmMetadata(tags=("mixing",))


class Penalty(Always):
    metadata = AlgorithmMetadata(within=("mix",))


def order_at(event, algorithms):
    with Engine(State(algorithms=algorithms), Logger()) as engine:
        return [trace.name for trace in engine.run_event(event).values()]


@pytest.mark.parametrize("listed", list(itertools.permutations([Smooth, Mix, Penalty])))
@pytest.mark.parametrize("event", Event)
def test_the_outer_one_comes_first_and_on_the_second_half_of_a_pair_last(event, listed):
    order = ["Smooth", "Mix", "Penalty"]
    expected = order[::-1] if event.is_after_event else order
    assert order_at(event, [cls() for cls in listed]) == expected


@given(st.permutations(["outer", "first", "second", "inner"]))
def test_what_was_put_into_a_box_comes_out_as_it_went_in(listed):
    """Each pushes its name onto a stack, and has to pop its own name again."""

    class Stacking(Always):
        def __init__(self, name):
            self.name = name

        def match(self, event, state):
            return event.canonical_name == "loss"

        def apply(self, event, state, logger):
            if event is Event.BEFORE_LOSS:
                state.batch = [*state.batch, self.name]
            else:
                *state.batch, top = state.batch
                assert top == self.name

    class Outer(Stacking):
        metadata = AlgorithmMetadata(around=("@inside",))

    class Inside(Stacking):
        metadata = AlgorithmMetadata(tags=("inside",))

    class Inner(Stacking):
        metadata = AlgorithmMetadata(tags=("inside",), within=("@inside",))

    classes = {"outer": Outer, "first": Inside, "second": Inside, "inner": Inner}
    with Engine(State(algorithms=[classes[name](name) for name in listed], batch=[]), Logger()) as engine:
        engine.run_event("before_loss")
        assert (engine.state.batch[0], engine.state.batch[-1]) == ("outer", "inner")
        engine.run_event("after_loss")
        assert engine.state.batch == []


def test_explain_names_the_relation():
    with Engine(State(algorithms=[Mix(), Smooth()]), Logger()) as engine:
        reasons = [[e.why for e in engine.explain(event)] for event in ("before_loss", "after_loss")]
    assert reasons == [
        ["before Mix: declared by Smooth (around='@mixing')", "after Smooth: declared by Smooth (around='@mixing')"],
        ["before Smooth: declared by Smooth (around='@mixing')", "after Mix: declared by Smooth (around='@mixing')"],
    ]


def test_each_around_the_other_is_a_cycle():
    class One(Always):
        metadata = AlgorithmMetadata(around=("other",))

    class Other(Always):
        metadata = AlgorithmMetadata(around=("one",))

    with pytest.raises(EngineError, match=r"One \(around='other'\)") as refused:
        Engine(State(algorithms=[One(), Other()]), Logger())
    assert isinstance(refused.value, OrderError)


def test_two_writers_that_are_nested_need_no_other_declaration():
    class Outer(Always):
        metadata = AlgorithmMetadata(around=("inner",), events=("before_loss", "after_loss"), writes=("batch",))

    class Inner(Always):
        metadata = AlgorithmMetadata(events=("before_loss", "after_loss"), writes=("batch",))

    Engine(State(algorithms=[Outer(), Inner()]), Logger()).close()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "mix", "around": ("mix",)}, "around: 'mix' names itself"),
        ({"name": "mix", "within": ("mix",)}, "within: 'mix' names itself"),
        ({"around": ("mix",), "within": ("mix",)}, "'mix' is in both around and within"),
    ],
)
def test_an_impossible_nesting_is_refused_when_it_is_declared(fields, message):
    with pytest.raises(ValueError, match=message):
        AlgorithmMetadata(**fields)
