"""What runs when at an event, at INIT the other way round, and the traces that are left."""

import pytest

from engine_core import (
    Algorithm,
    AlgorithmMetadata,
    Callback,
    Engine,
    Event,
    Logger,
    LoggerDestination,
    State,
    Trace,
    Traces,
    hookimpl,
)

from .parts import Always, Quiet

calls = []


@pytest.fixture(autouse=True)
def forget():
    calls.clear()


class Alg(Algorithm):
    def __init__(self, name):
        self.name = name

    def match(self, event, state):
        calls.append(f"{self.name}?")
        return True

    def apply(self, event, state, logger):
        calls.append(self.name)


def listening(base):
    """Return a class with a method for every event."""

    def hear(self, state, logger):
        calls.append(self.name)

    def remember(self, name):
        self.name = name

    return type("Listening", (base,), {"__init__": remember, **{event.value: hear for event in Event}})


Cb, Dest = listening(Callback), listening(LoggerDestination)


def make():
    state = State(algorithms=[Alg("a1"), Alg("a2")], callbacks=[Cb("c1"), Cb("c2")])
    return Engine(state, Logger([Dest("d1"), Dest("d2")]))


def test_algorithms_then_callbacks_then_destinations_and_of_undo_events_the_algorithms_alone_are_reversed():
    for event in set(Event) - {Event.INIT}:
        calls.clear()
        make().run_event(event)
        algorithms = ["a2", "a1"] if event.is_undo else ["a1", "a2"]
        assert calls == ["a1?", "a2?", *algorithms, "c1", "c2", "d1", "d2"]


def test_at_init_destinations_then_callbacks_then_algorithms():
    make().run_event("init")
    assert calls == ["d1", "d2", "c1", "c2", "a1?", "a2?", "a1", "a2"]


def test_all_are_asked_to_match_before_one_is_applied():
    class Hiding(Alg):
        def match(self, event, state):
            super().match(event, state)
            return state.batch is None

        def apply(self, event, state, logger):
            super().apply(event, state, logger)
            state.batch = "taken"

    engine = Engine(State(algorithms=[Hiding("h1"), Hiding("h2")]), Logger())
    engine.run_event("batch_start")
    engine.run_event("batch_start")
    assert calls == ["h1?", "h2?", "h1", "h2", "h1?", "h2?"]


def test_match_is_asked_at_each_event_unless_the_metadata_lists_some_and_who_does_not_match_is_not_applied():
    class Picky(Alg):
        metadata = AlgorithmMetadata(events=("before_loss", "fit_end"))

    class Never(Alg):
        def match(self, event, state):
            return False

    for algorithm, expected in ((Picky("p"), ["p?", "p"] * 2), (Alg("a"), ["a?", "a"] * 26), (Never("n"), [])):
        calls.clear()
        engine = Engine(State(algorithms=[algorithm]), Logger())
        for event in Event:
            engine.run_event(event)
        assert calls == expected


def test_one_object_may_have_two_roles_and_is_called_once_in_each():
    class Both(Alg):
        def batch_end(self, state, logger):
            calls.append("heard")

    both, dest = Both("both"), Dest("dest")
    engine = Engine(State(algorithms=[both], callbacks=[both, dest]), Logger([Dest("d"), dest]))
    engine.run_event("batch_end")
    assert calls == ["both?", "both", "heard", "dest", "d"]


def test_an_event_may_be_fired_inside_an_event():
    class Evaluating(Callback):
        def batch_end(self, state, logger):
            engine.run_event("eval_start")
            calls.append("evaluated")

    engine = Engine(State(algorithms=[Alg("a")], callbacks=[Evaluating(), Cb("c")]), Logger())
    engine.run_event("batch_end")
    assert calls == ["a?", "a", "a?", "a", "c", "evaluated", "c"]


def test_destinations_receive_the_traces_of_each_event_at_which_algorithms_ran():
    class Keeping(LoggerDestination):
        def log_traces(self, traces):
            calls.append(list(traces))

    class Picky(Alg):
        metadata = AlgorithmMetadata(events=("fit_end",))

    engine = Engine(State(algorithms=[Picky("p")]), Logger([Keeping()]))
    engine.run_event("fit_start")
    engine.run_event("fit_end")
    assert calls == ["p?", "p", ["Picky/FIT_END"]]


class Looks(Quiet):
    metadata = AlgorithmMetadata(events=("after_dataloader",))

    def match(self, event, state):
        calls.append("match")
        return False

    def validate(self, state):
        calls.append(f"validate {state.batch}")


class Elsewhere(Looks):
    metadata = AlgorithmMetadata(events=("fit_end",))


def run(engine, *batches):
    for engine.state.batch in batches:
        engine.run_event("after_dataloader")


def test_each_algorithm_looks_at_the_first_batch_once_before_any_match_and_latecomers_at_their_own():
    engine = Engine(State(algorithms=[Looks(), Elsewhere()]), Logger())
    run(engine, None, "b1", "b2")
    engine.state.algorithms.append(Elsewhere())
    run(engine, "b3", "b4")
    assert calls == ["match", "validate b1", "validate b1", "match", "match", "validate b3", "match", "match"]


def test_no_other_event_will_do():
    engine = Engine(State(algorithms=[Elsewhere()], batch="b1"), Logger())
    for event in ("init", "batch_start", "fit_end", "eval_batch_start"):
        engine.run_event(event)
    assert calls == ["match"]


def test_what_it_raises_stops_the_run_before_anything_is_changed():
    class Refusing(Looks):
        def validate(self, state):
            raise ValueError(f"can't prune {state.batch}")

    engine = Engine(State(algorithms=[Looks(), Refusing()]), Logger())
    for _ in range(2):
        with pytest.raises(ValueError, match="can't prune b1") as failure:
            run(engine, "b1")
    assert failure.value.__notes__ == ["raised by validate of algorithm Refusing at AFTER_DATALOADER"]
    assert calls == ["validate b1"]


def test_an_algorithm_without_it_is_fine_and_each_engine_asks_again():
    duck = type("Duck", (), {"match": Looks.match, "apply": Looks.apply})()
    algorithm = Looks()
    run(Engine(State(algorithms=[duck]), Logger()), "b1")
    for batch in ("b1", "b2"):
        run(Engine(State(algorithms=[algorithm]), Logger()), batch)
    assert calls == ["match", "validate b1", "match", "validate b2", "match"]


class MixUp(Always):
    def __init__(self, exit_code=None):
        self.exit_code = exit_code

    def apply(self, event, state, logger):
        return self.exit_code

    def __str__(self):
        return "the same"

    __repr__ = __str__


class Failing(MixUp):
    def apply(self, event, state, logger):
        raise ZeroDivisionError


def test_each_run_leaves_a_trace_under_name_and_event_in_running_order():
    engine = Engine(State(algorithms=[MixUp(), MixUp(5), MixUp(0)]), Logger())
    traces = engine.run_event(Event.AFTER_LOSS)
    assert list(traces.items()) == [
        ("MixUp-3/AFTER_LOSS", Trace("MixUp-3", Event.AFTER_LOSS, 0, 0, True)),
        ("MixUp-2/AFTER_LOSS", Trace("MixUp-2", Event.AFTER_LOSS, 5, 1, True)),
        ("MixUp/AFTER_LOSS", Trace("MixUp", Event.AFTER_LOSS, None, 2, True)),
    ]
    assert (type(traces), Engine(State(), Logger()).run_event("init")) == (Traces, {})


def test_a_changing_exit_code_is_seen_each_time_in_traces_of_that_event_alone():
    algorithm = MixUp(1)
    engine = Engine(State(algorithms=[algorithm]), Logger())
    codes = []
    for algorithm.exit_code in (1, None, 3):
        traces = engine.run_event("batch_end")
        codes += [trace.exit_code for trace in traces.values()]
        traces.clear()
    assert codes == [1, None, 3]


def test_a_wrapper_sees_what_ran_and_what_was_never_reached_when_one_raises_and_may_add_its_own():
    seen = {}

    class Watching:
        @hookimpl(wrapper=True)
        def batch_end(self, traces):
            traces["mine"] = Trace("mine", Event.BATCH_END, 0, 0, run=True)
            try:
                return (yield)
            finally:
                seen.update({name: (trace.order, trace.run) for name, trace in traces.items()})

    failing = Failing()
    engine = Engine(State(algorithms=[MixUp(1), failing, MixUp(), MixUp()]), Logger())
    engine.host.register(Watching())
    with pytest.raises(ZeroDivisionError) as failure:
        engine.run_event("batch_end")
    assert failure.value.__notes__ == ["raised by apply of algorithm Failing at BATCH_END"]
    assert seen == {
        "mine": (0, True),
        "MixUp/BATCH_END": (0, True),
        "Failing/BATCH_END": (1, True),
        "MixUp-2/BATCH_END": (2, False),
        "MixUp-3/BATCH_END": (3, False),
    }
    engine.state.algorithms.remove(failing)
    assert len(engine.run_event("batch_end")) == 4
