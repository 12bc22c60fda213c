"""A custom loop that fires events: no Trainer, no loader, no duration, no torch."""

from engine_core import Algorithm, AlgorithmMetadata, Engine, Logger, State


class Double(Algorithm):
    metadata = AlgorithmMetadata(events=("before_loss",))

    def match(self, event, state):
        return state.batch % 2 == 0

    def apply(self, event, state, logger):
        state.outputs *= 2


def test_a_model_that_is_any_object_and_a_loop_are_enough():
    def model(number):
        return number + 1

    state = State(model=model, algorithms=[Double()])
    results = []
    with Engine(state, Logger()) as engine:
        engine.run_event("init")
        for state.batch in (1, 2, 3, 4):
            state.outputs = state.model(state.batch)
            engine.run_event("before_loss")
            results.append(state.outputs)
    assert results == [2, 6, 4, 10]


def test_init_does_not_have_to_be_fired():
    assert list(Engine(State(model=object()), Logger()).run_event("batch_end")) == []
    engine = Engine(State(model=object(), algorithms=[Double()], batch=2, outputs=1), Logger())
    assert list(engine.run_event("BEFORE_LOSS")) == ["Double/BEFORE_LOSS"]
