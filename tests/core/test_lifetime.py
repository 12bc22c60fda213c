"""What outlives an engine: nothing; and what closes it: whatever comes first."""

import gc
import subprocess
import sys
import weakref

import pytest

from engine_core import Algorithm, Callback, Engine, Logger, LoggerDestination, State, hookimpl

closed: list[str] = []


@pytest.fixture(autouse=True)
def forget():
    closed.clear()


class Alg(Algorithm):
    def match(self, event, state):
        return True

    def apply(self, event, state, logger):
        return None


class Cb(Callback):
    def batch_end(self, state, logger):
        pass

    def close(self, state, logger):
        closed.append("closed")


class Dest(LoggerDestination):
    def batch_end(self, state, logger):
        pass


def opened():
    engine = Engine(State(model=Alg(), algorithms=[Alg()], callbacks=[Cb()]), Logger([Dest()]))
    for event in ("init", "batch_end", "after_dataloader"):
        engine.run_event(event)
    return engine


def test_nothing_keeps_the_state_of_a_closed_engine_alive():
    engine = opened()
    watched = [weakref.ref(engine.state.model), weakref.ref(engine.state), weakref.ref(engine)]
    engine.close()
    del engine
    gc.collect()
    assert [ref() for ref in watched] == [None, None, None]


def test_nothing_keeps_it_alive_when_third_parties_had_registered_with_its_host():
    class Guest:
        @hookimpl(wrapper=True)
        def batch_end(self, state):
            return (yield)

    engine = opened()
    guest = Guest()
    engine.host.register(guest)
    engine.run_event("batch_end")
    watched = weakref.ref(engine.state.model)
    engine.close()
    del engine
    gc.collect()
    assert watched() is None


def test_the_host_releases_the_state_at_once():
    engine = opened()
    host, watched = engine.host, weakref.ref(engine.state.model)
    engine.close()
    del engine
    gc.collect()
    assert watched() is None
    assert host.get_plugins() == set()


def test_a_logger_does_not_keep_the_state_alive():
    logger = Logger()
    state = State(model=Alg())
    Engine(state, logger).close()
    watched = weakref.ref(state)
    del state
    gc.collect()
    assert watched() is None


def test_collecting_an_engine_closes_it():
    engine = opened()
    del engine
    gc.collect()
    assert closed == ["closed"]


def test_an_engine_that_its_callbacks_and_algorithms_know_is_collected_too():
    engine = opened()
    engine.state.callbacks[0].engine = engine.state.algorithms[0].engine = engine
    watched = weakref.ref(engine.state.model)
    del engine
    gc.collect()
    assert (closed, watched()) == (["closed"], None)


def test_a_callback_of_a_collected_engine_can_be_used_again():
    engine = opened()
    callback = engine.state.callbacks[0]
    del engine
    gc.collect()
    with Engine(State(callbacks=[callback]), Logger()) as again:
        again.run_event("init")
    assert closed == ["closed", "closed"]


def test_a_state_that_outlives_its_engines_forgets_them():
    state = State(algorithms=[Alg()])
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


@pytest.mark.parametrize(
    ("ending", "code"),
    [("", 0), ("engine.close()", 0), ("sys.exit(3)", 3), ("1 / 0", 1), ("del engine", 0), ("sys.kept = engine", 0)],
    ids=["runs out", "closed", "exit", "exception", "deleted", "kept"],
)
def test_at_the_interpreters_exit_each_callback_has_been_closed_once(ending, code):
    done = subprocess.run([sys.executable, "-c", PROGRAM + ending], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["close mine", "post_close"]
    assert done.returncode == code


def test_an_engine_may_live_in_a_thread():
    program = f"import threading\n\ndef work():\n    exec({PROGRAM!r}, {{}})\n\n"
    program += "t = threading.Thread(target=work); t.start(); t.join()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["close mine", "post_close"]
