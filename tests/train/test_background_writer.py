"""A write in a thread: it is waited for whatever interrupts the wait or the start, and nothing of it is left after."""

import signal
import threading
import time

import pytest

from engine_core.checkpoint import BackgroundWriter
from engine_core.errors import CheckpointWarning
from engine_core_author import ThreadRanks


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="timers that signal are POSIX's")
def test_an_exception_while_a_save_is_waited_for_leaves_it_to_be_waited_for():
    """Like torch's, which a signal handler raises when a worker process dies."""

    def handle(*_):
        raise ArithmeticError

    may_end, writer = threading.Event(), BackgroundWriter()
    writer.start(lambda: may_end.wait() and None)
    former = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(ArithmeticError):
            writer.wait()
        assert writer.is_busy
    finally:
        signal.signal(signal.SIGALRM, former)
        may_end.set()
        writer.wait()
    assert not writer.is_busy


def test_a_write_whose_start_is_interrupted_is_waited_for(monkeypatch):
    """A signal handler may raise when the thread runs already."""
    start, written, may_end = threading.Thread.start, [], threading.Event()

    def starting(thread):
        start(thread)
        assert began.wait(9)
        raise ArithmeticError

    def write():
        began.set()
        assert may_end.wait(9)
        written.append("all of it")

    began, writer = threading.Event(), BackgroundWriter()
    monkeypatch.setattr(threading.Thread, "start", starting)
    with pytest.raises(ArithmeticError):
        writer.start(write)
    assert writer.is_busy
    may_end.set()
    writer.wait()
    assert written == ["all of it"]


def test_a_write_whose_thread_can_not_start_is_not_waited_for(monkeypatch):
    def starting(thread):
        raise RuntimeError("can't start new thread")

    writer, written = BackgroundWriter(), []
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="can't start new thread"):
        patch.setattr(threading.Thread, "start", starting)
        writer.start(lambda: written.append(1))
    assert not writer.is_busy
    writer.start(lambda: written.append(2))
    writer.wait()
    assert written == [2]


def test_a_long_wait_of_all_ranks_is_said_once_with_those_that_still_write():
    def program(ranks):
        ranks.timeout_s = 0.1
        writer = BackgroundWriter()
        if ranks.rank:
            writer.start(lambda: time.sleep(0.6))
        writer.wait_for_all(ranks)
        assert not writer.is_busy

    with pytest.warns(CheckpointWarning) as warned:
        ThreadRanks.run(program, size=3)
    said = "rank 1 and rank 2 are still writing a checkpoint after 0.1 s, and all ranks wait for that"
    assert [str(warning.message) for warning in warned] == [said]
