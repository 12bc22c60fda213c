"""`around` and `within`: one algorithm does and undoes its work between the two halves of another."""

import itertools

from engine_core import AlgorithmMetadata, Engine, Event, Logger, State

from .parts import Always, made, order_at


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
