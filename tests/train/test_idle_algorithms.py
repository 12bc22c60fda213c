"""An algorithm that was asked throughout a training and never matched is named once, at its end."""

import warnings

import pytest

from engine_core import Algorithm, AlgorithmMetadata
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.errors import IdleAlgorithmWarning
from engine_core.loggers.run_files import RunFiles
from engine_core.run.result import results_of

from .parts import at, batches, trainer


class Idle(Algorithm):
    metadata = AlgorithmMetadata(events=("after_loss",), writes=())

    def match(self, event, state):
        return False

    def apply(self, event, state, logger):
        raise AssertionError("it never matches")


class Always(Idle):
    def match(self, event, state):
        return True

    def apply(self, event, state, logger):
        return None


def make(*algorithms, **settings):
    return trainer(batches(2, 2), algorithms=list(algorithms), **{"max_duration": "2ep", **settings})


def told(made, *durations):
    """Return what fits of these durations warn about idle algorithms."""
    with made, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", IdleAlgorithmWarning)
        for duration in durations or (None,):
            made.fit(duration)
    return [str(w.message) for w in caught if w.category is IdleAlgorithmWarning]


NEVER = (
    "Idle was asked {} times at AFTER_LOSS and never matched; if that is as it should be, let its may_rest return True"
)


def test_it_is_named_once_at_the_end_with_how_often_it_was_asked_where():
    assert told(make(Idle(), Always())) == [NEVER.format(4)]
    assert told(make(Idle()), "1ep") == []
    assert told(make(Idle()), "1ep", "1ep") == [NEVER.format(4)]
    assert told(make(Idle(), max_duration=None), "1ep", "1ep", "1ep") == [NEVER.format(2)]


def test_each_event_counts_and_who_joins_later_or_makes_plans_anew_counts_right():
    class Later(Idle):
        metadata = AlgorithmMetadata(events=("fit_end", "after_loss"), writes=())

    joining = at("batch_end", lambda state: state.timestamp.batch == 2 and state.algorithms.append(Later()))
    later = NEVER.format(5).replace("Idle", "Later").replace("LOSS", "LOSS and FIT_END")
    assert told(make(Idle(), callbacks=[joining], microbatch_size=1)) == [NEVER.format(8), later]


def test_where_it_may_rest_nothing_is_said_and_it_is_asked_only_if_it_never_matched():
    asked = []

    class Resting(Idle):
        def may_rest(self, state):
            asked.append(state.timestamp.batch)
            return True

    class Working(Always):
        may_rest = Resting.may_rest

    assert told(make(Resting(), Working())) == []
    assert asked == [4]


@pytest.mark.parametrize("event", ["init", "fit_end", "after_loss"])
def test_once_is_enough(event):
    class Once(Always):
        metadata = AlgorithmMetadata(events=("init", "after_loss", "fit_end"), writes=())

        def match(self, at, state):
            return at == event and state.timestamp.batch in (0, 4)

    assert told(make(Once())) == []


@pytest.mark.parametrize(("how", "batch"), [("pause_training", 3), ("pause_training", 4), ("stop_training", 3)])
def test_a_training_that_ends_early_or_pauses_says_nothing(how, batch):
    ending = at("batch_end", lambda state: state.timestamp.batch == batch and getattr(state, how)())
    assert told(make(Idle(), callbacks=[ending])) == []


def test_a_resumed_training_says_nothing_since_an_earlier_attempt_may_have_had_the_match(tmp_path):
    class First(Always):
        def match(self, event, state):
            return state.timestamp.batch == 0

    told(make(First(), callbacks=[("checkpoint_saver", {"folder": tmp_path, "interval": "1ba"})]), "1ep")
    assert told(make(First(), load_path=tmp_path)) == []


def test_an_exception_in_may_rest_is_blamed_on_it():
    class Failing(Idle):
        def may_rest(self, state):
            raise ZeroDivisionError

    with make(Failing()) as made, pytest.raises(ZeroDivisionError) as error:
        made.fit()
    assert error.value.__notes__ == ["raised by may_rest of algorithm Failing at FIT_END"]


def test_the_warning_is_at_the_line_of_fit_and_a_training_that_raises_says_nothing():
    with make(Idle()) as made, pytest.warns(IdleAlgorithmWarning) as caught:
        made.fit()
    assert [w.filename for w in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error", IdleAlgorithmWarning)
        failing = make(Idle(), callbacks=[at("fit_end", lambda state: 1 / 0)])
        with failing, pytest.raises(ZeroDivisionError):
            failing.fit()


class Once(Idle):
    """Finishes in its first batch; a process that resumes has to repeat what it did, and asks once more."""

    def __init__(self):
        self.asked = 0

    def match(self, event, state):
        self.asked += 1
        return True

    def apply(self, event, state, logger):
        self.finish()


def test_one_that_has_finished_is_not_asked_in_a_second_fit_and_once_more_in_a_resumed_run(tmp_path):
    once, saver = Once(), CheckpointSaver(tmp_path)
    assert told(make(once, callbacks=saver), "1ep", "1ep") == []
    assert once.asked == 1
    make(once, load_path=tmp_path, max_duration="4ep").fit()
    assert once.asked == 2


def test_the_results_of_a_run_name_what_has_finished(tmp_path):
    files = RunFiles(tmp_path)
    with make(Once(), Always(), loggers=files) as made:
        made.fit()
        results = results_of(made, files)
    assert (results.algorithms["Once/AFTER_LOSS"], results.finished) == (1, ["Once"])
    assert results.to_json()["finished"] == ["Once"]
