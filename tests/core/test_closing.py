"""What closes an engine: whatever comes first; and what outlives it: nothing."""

import copy
import gc
import logging
import pickle
import subprocess
import sys
import weakref

import pytest

from engine_core import Callback, Engine, Logger, LoggerDestination, State, hookimpl
from engine_core.errors import ClosedEngineError, EngineError

from .parts import A

calls = []


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


class Guest:
    @hookimpl(wrapper=True)
    def batch_end(self, state):
        return (yield)


class Full(Dest):
    def log_metrics(self, metrics, step):
        raise OSError("disk full")


def running():
    engine = Engine(State(model=A(), algorithms=[A()], callbacks=[Cb("a")]), Logger([Full("d")]))
    for event in ("init", "batch_end", "after_dataloader"):
        engine.run_event(event)
    return engine


def test_nothing_keeps_the_state_of_a_closed_engine_alive_neither_host_nor_logger_nor_guests_nor_a_failure(recwarn):
    engine, guest = running(), Guest()
    engine.host.register(guest)
    engine.run_event("batch_end")
    engine.logger.log_metrics({"loss": 0.5})
    host, logger = engine.host, engine.logger
    watched = [weakref.ref(engine.state.model), weakref.ref(engine.state), weakref.ref(engine)]
    engine.close()
    del engine
    gc.collect()
    assert [ref() for ref in watched] == [None, None, None]
    assert (host.get_plugins(), len(logger.destinations), len(recwarn)) == ({guest}, 1, 1)


def test_collecting_an_engine_that_ran_an_event_closes_it_and_its_callback_can_be_used_again():
    Engine(State(callbacks=[Cb("idle")]), Logger())
    known, used = running(), running()
    known.state.callbacks[0].engine = known.state.algorithms[0].engine = known
    callback, watched = used.state.callbacks[0], weakref.ref(known)
    del known, used
    gc.collect()
    assert (calls.count("a close"), "idle close" in calls, watched()) == (2, False, None)
    with Engine(State(callbacks=[callback]), Logger()) as again:
        again.run_event("init")
    assert calls.count("a close") == 3


def test_a_state_that_outlives_its_engines_forgets_them():
    state = State(algorithms=[A()])
    for _ in range(3):
        Engine(state, Logger()).close()
    assert state.algorithms._observers == []


PROGRAM = """
import sys
from engine_core import Callback, Engine, Logger, State

class Cb(Callback):
    def close(self, state, logger):
        print("close", state.run_name, flush=True)
    def post_close(self):
        print("post_close", flush=True)

engine = Engine(State(callbacks=[Cb()], run_name="mine"), Logger())
engine.run_event("init")
"""


IN_A_THREAD = f"""
import threading

def work():
    exec({PROGRAM!r}, {{}})

thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


@pytest.mark.parametrize(
    ("program", "code"),
    [(PROGRAM, 0), (f"{PROGRAM}sys.exit(3)", 3), (f"{PROGRAM}sys.kept = engine", 0), (IN_A_THREAD, 0)],
    ids=["runs out", "exit", "kept", "in a thread"],
)
def test_at_the_interpreters_exit_each_callback_has_been_closed_once(program, code):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["close mine", "post_close"]
    assert done.returncode == code
