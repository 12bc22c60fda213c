import copy
import gc
import logging
import pickle

import pytest

from engine_core import Callback, Engine, Logger, LoggerDestination, State
from engine_core.errors import ClosedEngineError, EngineError

calls: list[str] = []


@pytest.fixture(autouse=True)
def forget():
    calls.clear()


class Cb(Callback):
    def __init__(self, name, fails=()):
        self.name = name
        self.fails = fails

    def close(self, state, logger):
        self._say("close")

    def post_close(self):
        self._say("post_close")

    def _say(self, what):
        calls.append(f"{self.name} {what}")
        if what in self.fails:
            raise ZeroDivisionError(self.name)


class Dest(Cb, LoggerDestination):
    pass


def opened(*callbacks, destinations=()):
    engine = Engine(State(callbacks=callbacks), Logger(destinations))
    engine.run_event("init")
    return engine


def test_all_are_closed_once_in_order_destinations_last_and_only_then_post_closed():
    class Curious(Cb):
        def close(self, state, logger):
            super().close(state, logger)
            assert (state is engine.state, logger is engine.logger) == (True, True)

    engine = opened(Curious("a"), Cb("b"), destinations=[Dest("d")])
    engine.state.callbacks.append(Cb("late"))
    engine.run_event("batch_end")
    engine.close()
    engine.close()
    names = ["a", "b", "late", "d"]
    assert calls == [f"{name} close" for name in names] + [f"{name} post_close" for name in names]


def test_post_close_is_for_those_whose_close_succeeded_and_nothing_escapes(caplog):
    class Stubborn(Callback):
        def close(self, state, logger):
            raise KeyboardInterrupt

    opened(Cb("a", ["close"]), Cb("b", ["post_close"]), Stubborn(), Cb("c")).close()
    assert calls == ["a close", "b close", "c close", "b post_close", "c post_close"]
    assert [(r.name, r.levelno, r.getMessage(), r.exc_info[0]) for r in caplog.records] == [
        ("engine_core", logging.ERROR, "close of callback Cb failed", ZeroDivisionError),
        ("engine_core", logging.ERROR, "close of callback Stubborn failed", KeyboardInterrupt),
        ("engine_core", logging.ERROR, "post_close of callback Cb failed", ZeroDivisionError),
    ]


def test_a_closed_engine_refuses_events():
    engine = opened()
    engine.close()
    for run in (engine.run_event, engine.run_marker_only_event):
        with pytest.raises(ClosedEngineError, match="the engine is closed and can't run FIT_START; make a new one"):
            run("fit_start")
    with pytest.raises(RuntimeError):
        engine.run_event("init")
    with pytest.raises(ValueError, match="did you mean"):
        engine.run_event("fit_stop")


def test_a_callback_that_no_event_ever_reached_is_closed_too_and_once():
    engine = Engine(State(callbacks=[Cb("a")]), Logger([Dest("d")]))
    engine.state.callbacks.append(Cb("late"))
    engine.close()
    engine.close()
    assert calls == ["a close", "late close", "d close", "a post_close", "late post_close", "d post_close"]


class Failing(Callback):
    def fit_start(self, state, logger):
        raise ZeroDivisionError


@pytest.mark.parametrize("events", [[], ["init"], ["init", "fit_start"]])
def test_the_context_manager_closes_whether_or_not_an_event_ran_and_lets_exceptions_through(events):
    with pytest.raises(ZeroDivisionError), Engine(State(callbacks=[Failing(), Cb("a")]), Logger()) as engine:
        for event in events:
            engine.run_event(event)
        raise ZeroDivisionError
    assert calls == ["a close", "a post_close"]


def test_collecting_an_engine_that_ran_no_event_closes_nothing():
    Engine(State(callbacks=[Cb("b")]), Logger())
    gc.collect()
    assert calls == []


def test_an_engine_can_not_be_copied():
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(EngineError, match=r"Engine can't be copied or pickled, .*state_dict\(\), .*checkpoints"):
            copied(Engine(State(), Logger()))


def test_a_callback_that_was_removed_is_still_closed():
    engine = opened(Cb("a"), Cb("b"))
    engine.state.callbacks.pop(0)
    engine.run_event("batch_end")
    engine.close()
    assert calls == ["a close", "b close", "a post_close", "b post_close"]


def test_a_callback_may_close_the_engine_while_an_event_runs_or_it_is_being_closed():
    class Closing(Callback):
        def batch_end(self, state, logger):
            engine.close()

        def close(self, state, logger):
            engine.close()

    engine = opened(Closing(), Cb("b"))
    engine.run_event("batch_end")
    assert calls == ["b close", "b post_close"]
    with pytest.raises(RuntimeError):
        engine.run_event("batch_end")


def test_a_callback_that_is_open_elsewhere_is_refused_and_not_closed_here():
    shared = Cb("shared")
    first = opened(shared)
    second, third = Engine(State(callbacks=[Cb("own"), shared]), Logger()), opened(Cb("own"))
    third.state.callbacks.append(shared)
    for engine, event in ((second, "init"), (third, "batch_end")):
        said = "callback Cb is still open on another engine; close that engine first, or"
        with pytest.raises(EngineError, match=said):
            engine.run_event(event)
        engine.close()
    assert calls == ["own close", "own post_close"] * 2
    first.close()
    assert calls[4:] == ["shared close", "shared post_close"]


def test_a_closed_callback_can_be_used_again_even_if_its_closing_failed():
    callback = Cb("a")
    for fails in (["close"], ["post_close"], [], []):
        callback.fails = fails
        calls.clear()
        opened(callback).close()
        assert calls == ["a close", "a post_close"][: 1 if "close" in fails else 2]
