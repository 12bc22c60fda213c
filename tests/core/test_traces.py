from collections import OrderedDict

import pytest

from engine_core import Algorithm, Engine, Event, Logger, State, Trace, Traces, hookimpl


class MixUp(Algorithm):
    def __init__(self, exit_code=None):
        self.exit_code = exit_code

    def match(self, event, state):
        return True

    def apply(self, event, state, logger):
        return self.exit_code


class Failing(MixUp):
    def apply(self, event, state, logger):
        raise ZeroDivisionError


def test_each_run_leaves_a_trace_under_name_and_event_in_running_order():
    engine = Engine(State(algorithms=[MixUp(), MixUp(5), Failing.__base__(0)]), Logger())
    traces = engine.run_event(Event.AFTER_LOSS)
    assert traces == OrderedDict(
        {
            "MixUp-3/AFTER_LOSS": Trace("MixUp-3", Event.AFTER_LOSS, 0, 0, True),
            "MixUp-2/AFTER_LOSS": Trace("MixUp-2", Event.AFTER_LOSS, 5, 1, True),
            "MixUp/AFTER_LOSS": Trace("MixUp", Event.AFTER_LOSS, None, 2, True),
        }
    )
    assert type(traces) is Traces
    assert list(traces) == ["MixUp-3/AFTER_LOSS", "MixUp-2/AFTER_LOSS", "MixUp/AFTER_LOSS"]


def test_algorithms_that_print_alike_keep_traces_of_their_own():
    class Alike(MixUp):
        def __str__(self):
            return "the same"

        __repr__ = __str__

    engine = Engine(State(algorithms=[Alike(), Alike()]), Logger())
    assert list(engine.run_event("init")) == ["Alike/INIT", "Alike-2/INIT"]


def test_an_event_without_algorithms_has_no_traces():
    assert Engine(State(), Logger()).run_event("init") == Traces() == {}


def test_the_traces_of_one_event_are_not_those_of_the_next():
    engine = Engine(State(algorithms=[MixUp()]), Logger())
    first, second = engine.run_event("batch_end"), engine.run_event("batch_end")
    first.clear()
    assert list(second) == ["MixUp/BATCH_END"]


def test_a_changing_exit_code_is_seen_each_time():
    algorithm = MixUp(1)
    engine = Engine(State(algorithms=[algorithm]), Logger())
    codes = []
    for algorithm.exit_code in (1, None, 3):
        codes += [trace.exit_code for trace in engine.run_event("batch_end").values()]
    assert codes == [1, None, 3]


def test_a_wrapper_sees_what_ran_and_what_was_never_reached_when_one_raises():
    seen = {}

    class Watching:
        @hookimpl(wrapper=True)
        def batch_end(self, traces):
            try:
                return (yield)
            finally:
                seen.update({name: (trace.order, trace.run) for name, trace in traces.items()})

    engine = Engine(State(algorithms=[MixUp(1), Failing(), MixUp(), MixUp()]), Logger())
    engine.host.register(Watching())
    with pytest.raises(ZeroDivisionError):
        engine.run_event("batch_end")
    assert seen == {
        "MixUp/BATCH_END": (0, True),
        "Failing/BATCH_END": (1, True),
        "MixUp-2/BATCH_END": (2, False),
        "MixUp-3/BATCH_END": (3, False),
    }


def test_a_wrappers_own_trace_does_not_change_which_algorithm_is_blamed():
    class Adding:
        @hookimpl(wrapper=True)
        def batch_end(self, traces):
            traces["mine"] = Trace("mine", Event.BATCH_END, 0, 0, run=True)
            return (yield)

    engine = Engine(State(algorithms=[MixUp(), Failing()]), Logger())
    engine.host.register(Adding())
    with pytest.raises(ZeroDivisionError) as failure:
        engine.run_event("batch_end")
    assert failure.value.__notes__ == ["raised by apply of algorithm Failing at BATCH_END"]


def test_the_engine_keeps_working_after_an_exception():
    algorithm = MixUp()
    failing = Failing()
    engine = Engine(State(algorithms=[algorithm, failing]), Logger())
    with pytest.raises(ZeroDivisionError):
        engine.run_event("batch_end")
    engine.state.algorithms.remove(failing)
    assert list(engine.run_event("batch_end")) == ["MixUp/BATCH_END"]
