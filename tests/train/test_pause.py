"""A run that pauses, on request or after a wall-clock limit: saved, and resumed as if it had not paused."""

from types import SimpleNamespace

import pytest

from engine_core import State
from engine_core.callbacks import time_limit
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.callbacks.time_limit import TimeLimit
from engine_core.errors import ArgumentError

from .parts import Memory, at, batches, net, same, trainer, writing_down


def run(folder, *callbacks, **settings):
    callbacks = [*callbacks, CheckpointSaver(folder, "100ba")]
    evaluated = {"eval_dataloader": batches(4, 4), "eval_interval": "2ba", "callbacks": callbacks}
    return trainer(batches(8, 8, 8), net(dropout=0.2), max_duration="3ep", seed=2, **evaluated, **settings)


def pausing(event, batch):
    return at(event, lambda state: state.pause_training() if state.timestamp.batch == batch else None)


AT = {"batch_end": (1, 3, 6), "batch_checkpoint": (4, 9), "eval_batch_end": (2, 6, 9), "eval_end": (4, 6)}
PLACES = [(event, batch) for event, of_event in AT.items() for batch in of_event]


@pytest.mark.filterwarnings("ignore:fit.. has nothing to do")  # where it resumes a finished run
def test_a_run_that_pauses_and_is_resumed_is_the_run_that_did_not(tmp_path):
    logged = Memory()
    with run(tmp_path / "whole", loggers=logged) as whole:
        whole.fit()
    for event, batch in PLACES:
        folder, first, second = tmp_path / f"{event}-{batch}", Memory(), Memory()
        with run(folder, pausing(event, batch), loggers=first) as made:
            made.fit()
        with run(folder, autoresume=True, loggers=second) as resumed:
            resumed.fit()
        assert same(*(dict(made.state.model.state_dict()) for made in (resumed, whole))), folder.name
        assert resumed.state.metrics == whole.state.metrics, folder.name
        assert first.metrics + second.metrics == logged.metrics, folder.name


def test_it_ends_after_the_batch_is_saved_without_an_evaluation_and_has_its_fit_end(tmp_path):
    events = []
    wanted = ("batch_end", "batch_checkpoint", "eval_start", "fit_end")
    with run(tmp_path, pausing("batch_end", 1), writing_down(events, wanted)) as made:
        made.fit()
    assert events == ["batch_end", "batch_checkpoint", "fit_end"]
    assert [path.name for path in tmp_path.glob("ep*")] == ["ep0-ba1"]
    assert made.state.loop.pause_requested


@pytest.fixture
def sleeping(monkeypatch):
    """Return `sleeping(event, seconds)`, a callback after which the clock of time limits is later."""
    now = SimpleNamespace(s=0.0)
    monkeypatch.setattr(time_limit, "time", SimpleNamespace(monotonic=lambda: now.s))
    return lambda event, seconds: at(event, lambda state: setattr(now, "s", now.s + seconds))


@pytest.mark.parametrize(("event", "batch"), [("batch_start", 1), ("eval_batch_start", 2)])
def test_a_time_limit_pauses_after_the_batch_in_which_it_is_reached(event, batch, sleeping, tmp_path):
    with run(tmp_path, sleeping(event, 1.1), TimeLimit("1sec")) as made:
        made.fit()
    assert made.state.timestamp.batch == batch
    assert made.state.loop.pause_requested


def test_a_resumed_run_has_the_whole_limit_again_and_less_time_than_an_evaluation_takes_makes_progress(
    sleeping, tmp_path
):
    for event, seconds, reached in (("batch_start", 0.6, (2, 4)), ("eval_batch_start", 0.7, (2, 3, 4, 5))):
        for batch in reached:
            with run(tmp_path / event, sleeping(event, seconds), TimeLimit("1sec"), autoresume=True) as made:
                made.fit()
            assert made.state.timestamp.batch == batch


def test_a_time_limit_that_stops_ends_the_training_with_the_last_evaluation(sleeping):
    limited = [sleeping("batch_start", 1.1), TimeLimit("1sec", then="stop")]
    with trainer(batches(8, 8, 8), callbacks=limited, eval_dataloader=batches(4)) as made:
        made.fit()
    assert made.state.timestamp.batch == 1
    assert "eval/loss" in made.state.metrics
    assert not made.state.loop.pause_requested


def test_a_pause_without_a_saver_and_a_limit_that_is_no_time_are_refused():
    with trainer(callbacks=TimeLimit("1h")) as made, pytest.raises(ArgumentError, match="then='stop'"):
        made.fit()
    for arguments, why in ((("10ep",), "'10ep'.*max_duration"), (("1h", "end"), "then='end'")):
        with pytest.raises(ArgumentError, match=why):
            TimeLimit(*arguments)


def test_what_is_asked_for_before_a_fit_does_not_end_it_and_a_stop_comes_before_a_pause(tmp_path):
    with run(tmp_path, pausing("batch_end", 3)) as made:
        made.fit()
    with run(tmp_path, autoresume=True) as resumed:
        resumed.state.pause_training()
        resumed.fit()
    assert (resumed.state.timestamp.batch, resumed.state.loop.pause_requested) == (9, False)
    for asks in (("pause_training", "stop_training"), ("stop_training", "pause_training")):
        state = State()
        for ask in asks:
            getattr(state, ask)()
        assert (state.loop.stop_requested, state.loop.pause_requested) == (True, False)
