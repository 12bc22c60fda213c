import pytest

from engine_core import Engine, Event, Logger, State, Trace, Traces, hookimpl

from .parts import Always


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
