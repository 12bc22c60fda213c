import pytest

from engine_core import Engine, Logger, LoggerDestination, State, Timestamp, Traces
from engine_core_author import RecordingDestination


def test_what_is_logged_reaches_each_destination():
    first, second = RecordingDestination(), RecordingDestination()
    logger = Logger([first, LoggerDestination(), second])
    logger.log_metrics({"loss": 0.5}, step=3)
    logger.log_hyperparameters({"lr": 0.1})
    logger.log_traces(Traces())
    recorded = ([(3, {"loss": 0.5})], [{"lr": 0.1}], [Traces()])
    assert [(d.metrics, d.hyperparameters, d.traces) for d in (first, second)] == [recorded, recorded]


def test_without_destinations_no_value_is_even_looked_at():
    class Untouchable:
        def __getattribute__(self, name):
            raise AssertionError(name)

    logger = Logger()
    logger.log_metrics({"loss": Untouchable()})
    logger.log_hyperparameters({"lr": Untouchable()})
    logger.log_traces(Untouchable())


def test_the_step_is_the_number_of_complete_batches_unless_it_is_given():
    destination = RecordingDestination()
    state = State()
    logger = Logger([destination])
    Engine(state, logger)
    logger.log_metrics({"a": 1})
    state.timestamp = Timestamp(batch=7)
    logger.log_metrics({"b": 2})
    logger.log_metrics({"c": 3}, step=5)
    assert destination.metrics == [(0, {"a": 1}), (7, {"b": 2}), (5, {"c": 3})]


def test_a_destination_without_the_methods_is_refused_by_the_engine():
    destination = type("OnlyMetrics", (), {"log_metrics": LoggerDestination.log_metrics})()
    with pytest.raises(TypeError, match="has no log_hyperparameters and no log_traces; a destination is a Logger"):
        Engine(State(), Logger([destination]))
