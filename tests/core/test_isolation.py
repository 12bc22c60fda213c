"""A logger destination that raises: the run continues with a warning, and one that keeps failing is disabled."""

import sys
import threading
import warnings

import pytest

from engine_core import Engine, Event, Logger, LoggerDestination, State, Timestamp, Traces
from engine_core.errors import DestinationWarning
from engine_core.loggers.run_files import RunFiles
from engine_core.registry import Registry
from engine_core_author import RecordingDestination

LATER_EVENTS = [event for event in Event if event not in (Event.INIT, Event.FIT_START)]


class Faulty(LoggerDestination):
    """Raises in the methods that `fails` names, and records its calls."""

    def __init__(self, *fails, error=OSError):
        self.fails, self.error, self.heard = set(fails), error, []

    def _hear(self, method):
        self.heard.append(method)
        if method in self.fails:
            raise self.error("disk full")

    def log_metrics(self, metrics, step):
        self._hear("log_metrics")

    def log_hyperparameters(self, hyperparameters):
        self._hear("log_hyperparameters")

    def log_traces(self, traces):
        self._hear("log_traces")

    def close(self, state, logger):
        self.heard.append("close")


for event in Event:
    setattr(Faulty, event.value, lambda self, state, logger, name=event.value: self._hear(name))


def running(*destinations, **fields):
    return Engine(State(**fields), Logger(destinations))


def log(logger, method):
    getattr(logger, method)(Traces() if method == "log_traces" else {"loss": 0.5})


def test_the_warning_says_what_failed_where_when_and_why_and_what_follows(recwarn):
    engine = running(Faulty("log_metrics"), timestamp=Timestamp(epoch=1, batch=7))
    engine.logger.log_metrics({"loss": 0.5})
    (warning,) = recwarn
    place = f"(at {__file__}:{Faulty._hear.__code__.co_firstlineno + 3})"
    assert str(warning.message) == (
        f"logger destination Faulty failed in log_metrics at batch 7 (epoch 1): OSError: disk full {place}; training "
        "continues, and the other destinations still get it; failure 1 of 3 in a row, 1 of 30 in all, after which it "
        "is disabled. To stop instead: warnings.simplefilter('error', engine_core.errors.DestinationWarning), or "
        "PYTHONWARNINGS='error:logger destination' for a command"
    )
    assert (warning.category, warning.filename) == (DestinationWarning, __file__)


def test_the_warning_names_the_distribution(recwarn, tmp_path):
    class Name:
        def __str__(self):
            raise TypeError("no name")

    files = RunFiles(tmp_path)
    with running(files) as engine:
        engine.run_event("init")
        engine.logger.log_metrics({Name(): 1}, step=0)
    title = f"RunFiles (engine-core {Registry.scan().version_of('engine-core')})"
    assert f"destination {title} failed in log_metrics at batch 0 " in str(recwarn.pop(DestinationWarning).message)


def test_an_event_or_call_at_which_a_destination_raises_continues_for_the_others(recwarn):
    methods = [*map(str, LATER_EVENTS), "log_metrics", "log_hyperparameters", "log_traces"]
    for method in methods:
        first, last = Faulty(), Faulty()
        engine = running(first, Faulty(method), last)
        log(engine.logger, method) if method.startswith("log") else engine.run_event(method)
        assert first.heard == last.heard == [method]
    assert [str(w.message).partition(" at batch")[0] for w in recwarn] == [
        f"logger destination Faulty-2 failed in {method}" for method in methods
    ]


def test_before_training_what_it_raises_stops_the_run():
    for event in (Event.INIT, Event.FIT_START):
        with pytest.raises(OSError, match="disk full") as failure:
            running(Faulty(event.value)).run_event(event)
        assert failure.value.__notes__ == [f"raised by callback Faulty at {event.name}"]


def test_after_three_failures_in_a_row_it_is_disabled_and_only_closed_and_others_go_on(recwarn):
    faulty, at_event, sound = Faulty("log_metrics"), Faulty("batch_end"), Faulty()
    with running(sound, faulty, at_event) as engine:
        for _ in range(5):
            engine.logger.log_metrics({"loss": 0.5})
            engine.run_event("batch_end")
    assert faulty.heard == [*["log_metrics", "batch_end"] * 2, "log_metrics", "close"]
    assert at_event.heard == [*["log_metrics", "batch_end"] * 3, "close"]
    assert sound.heard == [*["log_metrics", "batch_end"] * 5, "close"]
    assert [str(w.message).rpartition("; ")[2].partition(".")[0] for w in recwarn][::2] == [
        "failure 1 of 3 in a row, 1 of 30 in all, after which it is disabled",
        "failure 2 of 3 in a row, 2 of 30 in all, after which it is disabled",
        "training continues without it: disabled after 3 failures of log_metrics in a row",
    ]


def test_a_success_resets_the_count(recwarn):
    faulty = Faulty()
    engine = running(faulty)
    for batch in range(12):
        engine.state.timestamp = Timestamp(batch=batch)
        faulty.fails = {"log_metrics", "batch_end"} if batch % 3 else set()
        engine.logger.log_metrics({"loss": 0.5})
        engine.run_event("batch_end")
    assert faulty.heard == ["log_metrics", "batch_end"] * 12
    assert len(recwarn) == 16


def test_each_method_is_counted_separately(recwarn):
    faulty = Faulty("log_metrics", "log_traces", "batch_end", "epoch_end")
    engine = running(faulty)
    for _ in range(2):
        engine.logger.log_metrics({"loss": 0.5})
        engine.logger.log_traces(Traces())
        engine.run_event("batch_end")
        engine.run_event("epoch_end")
    assert len(faulty.heard) == len(recwarn) == 8


@pytest.mark.parametrize("method", ["log_metrics", "batch_end"])
def test_an_interrupt_and_a_filter_that_makes_the_warning_an_error_stop_the_run(method):
    def call(engine):
        engine.run_event(method) if method == "batch_end" else log(engine.logger, method)

    for error in (KeyboardInterrupt, SystemExit):
        with pytest.raises(error):
            call(running(Faulty(method, error=error)))
    with warnings.catch_warnings():
        warnings.simplefilter("error", DestinationWarning)
        with pytest.raises(DestinationWarning, match=f"Faulty failed in {method}") as failure:
            call(running(LoggerDestination(), Faulty(method)))
    assert repr(failure.value.__context__) == "OSError('disk full')"


def test_only_the_destination_methods_of_a_callback_that_is_one_too_are_isolated(recwarn):
    both = Faulty("log_metrics", "batch_end")
    engine = running(both, callbacks=[both])
    for _ in range(4):
        engine.logger.log_metrics({"loss": 0.5})
    assert both.heard == ["log_metrics"] * 3
    with pytest.raises(OSError, match="disk full"):
        engine.run_event("batch_end")


def test_a_destination_that_logs_is_not_blamed_for_one_that_fails():
    class Logs(LoggerDestination):
        def batch_end(self, state, logger):
            logger.log_metrics({"loss": 0.5})

    with pytest.raises(DestinationWarning, match=r"^logger destination Faulty failed in log_metrics"):
        running(Logs(), Faulty("log_metrics")).run_event("batch_end")


def test_one_that_is_disabled_stays_so_when_the_list_is_edited_until_the_next_engine(recwarn):
    faulty, late = Faulty("log_metrics"), Faulty()
    engine = running(faulty)
    for _ in range(3):
        engine.logger.log_metrics({"loss": 0.5})
    engine.logger.destinations = [late]
    engine.run_event("batch_end")
    engine.logger.destinations.append(faulty)
    engine.run_event("batch_end")
    engine.logger.log_metrics({"loss": 0.5})
    assert late.heard == ["batch_end", "batch_end", "log_metrics"]
    assert faulty.heard == ["log_metrics"] * 3
    engine.close()
    with Engine(State(), engine.logger):
        engine.logger.log_metrics({"loss": 0.5})
    assert faulty.heard == [*["log_metrics"] * 3, "close", "log_metrics", "close"]


def test_a_logger_without_an_engine_isolates_too_and_an_object_without_the_method_is_no_failing_destination(recwarn):
    last = RecordingDestination()
    Logger([Faulty("log_metrics"), last]).log_metrics({"loss": 0.5}, step=3)
    assert last.metrics == [(3, {"loss": 0.5})]
    assert "destination Faulty failed in log_metrics: OSError: disk full" in str(recwarn.pop().message)
    with pytest.raises(AttributeError, match="log_metrics"):
        Logger([object()]).log_metrics({"loss": 0.5}, step=0)


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
