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


def test_all_are_closed_in_order_destinations_last_and_only_then_post_closed():
    opened(Cb("a"), Cb("b"), destinations=[Dest("d")]).close()
    assert calls == ["a close", "b close", "d close", "a post_close", "b post_close", "d post_close"]


def test_close_gets_state_and_logger():
    class Curious(Callback):
        def close(self, state, logger):
            calls.append((state is engine.state, logger is engine.logger))

    engine = opened(Curious())
    engine.close()
    assert calls == [(True, True)]


def test_closing_twice_closes_once():
    engine = opened(Cb("a"))
    engine.close()
    engine.close()
    assert calls == ["a close", "a post_close"]


def test_post_close_is_for_those_whose_close_succeeded_and_nothing_escapes(caplog):
    opened(Cb("a", ["close"]), Cb("b", ["post_close"]), Cb("c")).close()
    assert calls == ["a close", "b close", "c close", "b post_close", "c post_close"]
    assert [(r.name, r.levelno, r.getMessage(), r.exc_info[0]) for r in caplog.records] == [
        ("engine_core", logging.ERROR, "close of callback Cb failed", ZeroDivisionError),
        ("engine_core", logging.ERROR, "post_close of callback Cb failed", ZeroDivisionError),
    ]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_not_even_these_escape(error, caplog):
    class Stubborn(Callback):
        def close(self, state, logger):
            raise error

    opened(Stubborn(), Cb("b")).close()
    assert calls == ["b close", "b post_close"]
    assert len(caplog.records) == 1


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


def test_the_context_manager_closes_and_lets_exceptions_through():
    def work():
        with Engine(State(callbacks=[Cb("a")]), Logger()) as engine:
            engine.run_event("init")
            raise KeyError

    with pytest.raises(KeyError):
        work()
    assert calls == ["a close", "a post_close"]


def test_a_callback_that_no_event_ever_reached_is_closed_too_and_once():
    engine = Engine(State(callbacks=[Cb("a")]), Logger([Dest("d")]))
    engine.state.callbacks.append(Cb("late"))
    engine.close()
    engine.close()
    assert calls == ["a close", "late close", "d close", "a post_close", "late post_close", "d post_close"]


def test_without_an_event_the_context_manager_closes_and_collecting_the_engine_does_not():
    with Engine(State(callbacks=[Cb("a")]), Logger()):
        pass
    assert calls == ["a close", "a post_close"]
    Engine(State(callbacks=[Cb("b")]), Logger())
    gc.collect()
    assert calls == ["a close", "a post_close"]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_an_engine_can_not_be_copied(copied):
    with pytest.raises(EngineError, match=r"Engine can't be copied or pickled, .*state_dict\(\), .*checkpoints"):
        copied(Engine(State(), Logger()))


def test_a_latecomer_is_closed_too_before_the_destinations():
    engine = opened(Cb("a"), destinations=[Dest("d")])
    engine.state.callbacks.append(Cb("late"))
    engine.run_event("batch_end")
    engine.close()
    assert calls[:3] == ["a close", "late close", "d close"]


def test_a_callback_that_was_removed_is_still_closed():
    engine = opened(Cb("a"), Cb("b"))
    engine.state.callbacks.pop(0)
    engine.run_event("batch_end")
    engine.close()
    assert calls == ["a close", "b close", "a post_close", "b post_close"]


def test_a_callback_may_close_the_engine_while_an_event_runs():
    class Closing(Callback):
        def batch_end(self, state, logger):
            engine.close()

    engine = opened(Closing(), Cb("b"))
    engine.run_event("batch_end")
    assert calls == ["b close", "b post_close"]
    with pytest.raises(RuntimeError):
        engine.run_event("batch_end")


def test_a_callback_may_close_the_engine_while_it_is_closed():
    class Again(Callback):
        def close(self, state, logger):
            calls.append("again")
            engine.close()

    engine = opened(Again(), Cb("b"))
    engine.close()
    assert calls == ["again", "b close", "b post_close"]


def test_a_callback_that_is_open_elsewhere_is_refused_at_init():
    shared = Cb("shared")
    first = opened(shared)
    second = Engine(State(callbacks=[Cb("own"), shared]), Logger())
    with pytest.raises(EngineError, match="callback Cb is still open on another engine; close that engine first, or"):
        second.run_event("init")
    second.close()
    assert calls == ["own close", "own post_close"]
    first.close()
    assert calls[2:] == ["shared close", "shared post_close"]


def test_a_latecomer_that_is_open_elsewhere_is_refused_and_not_closed_here():
    shared = Cb("shared")
    first = opened(shared)
    second = opened(Cb("own"))
    second.state.callbacks.append(shared)
    with pytest.raises(EngineError, match="still open on another engine"):
        second.run_event("batch_end")
    second.close()
    assert calls == ["own close", "own post_close"]
    first.close()


@pytest.mark.parametrize("fails", [(), ("close",), ("post_close",)], ids=["fine", "close fails", "post_close fails"])
def test_a_closed_callback_can_be_used_again_even_if_its_closing_failed(fails):
    callback = Cb("a", fails)
    opened(callback).close()
    calls.clear()
    callback.fails = ()
    opened(callback).close()
    assert calls == ["a close", "a post_close"]


def test_each_opening_is_closed_once():
    callback = Cb("a")
    for _ in range(3):
        opened(callback).close()
    assert calls == ["a close", "a post_close"] * 3


def test_after_an_event_that_failed_everything_is_still_closed():
    class Failing(Callback):
        def fit_start(self, state, logger):
            raise ZeroDivisionError

    engine = opened(Failing(), Cb("b"))
    with pytest.raises(ZeroDivisionError):
        engine.run_event("fit_start")
    engine.close()
    assert calls == ["b close", "b post_close"]
