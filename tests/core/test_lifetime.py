"""What outlives an engine: nothing; and what closes it: whatever comes first."""

import gc
import subprocess
import sys
import weakref

import pytest

from engine_core import Callback, Engine, Logger, LoggerDestination, State, hookimpl

from .parts import A

closed: list[str] = []


@pytest.fixture(autouse=True)
def forget():
    closed.clear()


class Cb(Callback):
    def batch_end(self, state, logger):
        pass

    def close(self, state, logger):
        closed.append("closed")


class Dest(LoggerDestination):
    def batch_end(self, state, logger):
        pass

    def log_metrics(self, metrics, step):
        raise OSError("disk full")


class Guest:
    @hookimpl(wrapper=True)
    def batch_end(self, state):
        return (yield)


def opened():
    engine = Engine(State(model=A(), algorithms=[A()], callbacks=[Cb()]), Logger([Dest()]))
    for event in ("init", "batch_end", "after_dataloader"):
        engine.run_event(event)
    return engine


def test_nothing_keeps_the_state_of_a_closed_engine_alive_neither_host_nor_logger_nor_guests_nor_a_failure(recwarn):
    engine, guest = opened(), Guest()
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


def test_collecting_an_engine_that_its_members_know_closes_it_and_its_callback_can_be_used_again():
    engine = opened()
    callback, watched = engine.state.callbacks[0], weakref.ref(engine)
    callback.engine = weakref.proxy(engine)
    engine.state.algorithms[0].engine = engine
    del engine
    gc.collect()
    assert (closed, watched()) == (["closed"], None)
    with Engine(State(callbacks=[callback]), Logger()) as again:
        again.run_event("init")
    assert closed == ["closed", "closed"]


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
