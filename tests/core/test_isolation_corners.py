"""A logger destination that raises now and then, from several threads, or is not a destination."""

import sys
import threading

import pytest

from engine_core import Logger, LoggerDestination


class Refuses(LoggerDestination):
    """Raises at each value unless all of them are 0."""

    calls = 0

    def log_metrics(self, metrics, step):
        self.calls += 1
        if any(metrics.values()):
            raise OSError("disk full")


def test_one_that_fails_now_and_then_is_disabled_after_thirty_failures_in_all(recwarn):
    refuses = Refuses()
    logger = Logger([refuses])
    for step in range(100):
        logger.log_metrics({"loss": step % 3}, step)
    assert (len(recwarn), refuses.calls) == (30, 45)
    assert "training continues without it: disabled after 30 failures" in str(recwarn.list[-1].message)


@pytest.mark.filterwarnings("ignore::engine_core.errors.DestinationWarning")
def test_threads_whose_calls_succeed_at_once_after_a_failure_are_not_stopped():
    class Meets(LoggerDestination):
        def log_metrics(self, metrics, step):
            if not metrics:
                raise OSError("disk full")
            together.wait()

    together, escaped = threading.Barrier(4), []
    loggers = [Logger([Meets()]) for _ in range(300)]
    for logger in loggers:
        logger.log_metrics({}, step=0)

    def log():
        for logger in loggers:
            try:
                logger.log_metrics({"loss": 1}, step=0)
            except KeyError as error:
                escaped.append(error)

    former = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=log) for _ in range(4)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(former)
    assert escaped == []


def test_an_object_without_the_method_is_not_a_failing_destination():
    with pytest.raises(AttributeError, match="log_metrics"):
        Logger([object()]).log_metrics({"loss": 0.5}, step=0)
