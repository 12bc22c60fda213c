import pytest

from engine_core import Engine, Logger, LoggerDestination, State, Timestamp, Traces
from engine_core_author import RecordingDestination


def test_what_is_logged_reaches_each_destination():
    first, second = RecordingDestination(), RecordingDestination()
    logger = Logger([first, second])
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


def test_a_destination_may_leave_out_what_it_does_not_want():
    logger = Logger([LoggerDestination()])
    logger.log_metrics({"loss": 0.5}, step=0)
    logger.log_hyperparameters({})
    logger.log_traces(Traces())


def test_a_destination_without_the_methods_is_refused_by_the_engine():
    class OnlyMetrics:
        def log_metrics(self, metrics, step):
            pass

    with pytest.raises(TypeError, match="has no log_hyperparameters and no log_traces; a destination is a Logger"):
        Engine(State(), Logger([OnlyMetrics()]))


def test_destinations_may_be_replaced_at_any_time():
    class Counting(LoggerDestination):
        ends = 0

        def batch_end(self, state, logger):
            self.ends += 1

    first, second = Counting(), Counting()
    logger = Logger([first])
    with Engine(State(), logger) as engine:
        engine.run_event("batch_end")
        logger.destinations = [second]
        engine.run_event("batch_end")
        engine.run_event("batch_end")
    assert (first.ends, second.ends) == (1, 2)
