"""An algorithm that says `finish` is not asked any more: from the next event on, in its own engine alone."""

import copy

import pytest

from engine_core import AlgorithmMetadata, Engine, Event, Logger, State
from engine_core.explain import explain_engine

from .parts import Always


class Once(Always):
    """Finishes at the event that it is given, and counts how often it is asked."""

    metadata = AlgorithmMetadata(events=("init", "before_loss", "after_loss", "batch_end"))

    def __init__(self, at="batch_end"):
        self.at, self.asked, self.applied = at, [], []

    def match(self, event, state):
        self.asked.append(event.value)
        return True

    def apply(self, event, state, logger):
        self.applied.append(event.value)
        if event == self.at:
            self.finish()


class Other(Always):
    """Runs on."""


def engine_of(*algorithms):
    return Engine(State(algorithms=list(algorithms)), Logger())


def run(engine, *events):
    return [[trace.name for trace in engine.run_event(event).values()] for event in events]


def test_from_the_next_event_on_it_is_not_asked_and_the_engine_that_only_had_it_hears_nothing():
    once = Once()
    with engine_of(once, Other()) as engine:
        ran = run(engine, "before_loss", "after_loss", "batch_end", "batch_end", "before_loss")
        assert ran == [["Once", "Other"], ["Other", "Once"], ["Once", "Other"], ["Other"], ["Other"]]
        engine.state.algorithms.append(Other())  # another list asks nobody again
        engine.run_event("batch_end")
    assert once.asked == ["before_loss", "after_loss", "batch_end"]
    with engine_of(Once()) as engine:
        run(engine, "batch_end", "batch_end")
        assert "batch_end" in engine.unheard


def test_what_it_has_begun_it_undoes_at_the_next_event():
    once = Once(at="before_loss")
    with engine_of(once, Other()) as engine:
        run(engine, "before_loss", "batch_end", "after_loss", "before_loss")
    assert once.applied == ["before_loss", "after_loss"]


def test_explain_tells_it_and_loaded_states_and_other_engines_ask_it_anew():
    put_states_back = pytest.importorskip("engine_core.loop").put_states_back  # with torch only
    once = Once()
    with engine_of(once) as engine:
        run(engine, "batch_end")
        (skipped,) = explain_engine(engine).skipped
        assert (skipped.what, skipped.why) == ("Once", "it has finished, and is not asked any more")
        assert skipped.events == ("init", "before_loss", "after_loss", "batch_end")
        put_states_back(engine, {})
        assert run(engine, "batch_end", "batch_end") == [["Once"], []]
        copy.deepcopy(once).finish()  # is in no engine
    with engine_of(once) as engine:
        assert run(engine, "batch_end", "batch_end") == [["Once"], []]
    Once().finish()


def test_from_then_on_an_event_is_dispatched_as_if_it_had_never_been_there():
    with engine_of(Once(at=Event.INIT), Other()) as engine, engine_of(Other()) as without:
        for each in (engine, without):
            run(each, "init", "batch_end")
        assert engine._dispatch.keys() == without._dispatch.keys()
        handler = engine._dispatch["batch_end"]
        run(engine, "batch_end")
        assert engine._dispatch["batch_end"] is handler
