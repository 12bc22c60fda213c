"""A run that pauses, on request or after a wall-clock limit: saved, and resumed as if it had not paused."""

import time
from pathlib import Path
from typing import Any

import pytest

from engine_core import State
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.callbacks.time_limit import TimeLimit
from engine_core.errors import ArgumentError

from .parts import Memory, at, batches, net, same, trainer, writing_down


def run(folder: Path, *callbacks: Any, loggers: Any = (), **settings: Any) -> Any:
    return trainer(
        batches(8, 8, 8),
        net(dropout=0.2),
        max_duration="3ep",
        eval_dataloader=batches(4, 4),
        eval_interval="2ba",
        seed=2,
        callbacks=[*callbacks, CheckpointSaver(folder, "100ba")],
        loggers=loggers,
        **settings,
    )


def pausing(event: str, batch: int) -> Any:
    return at(event, lambda state: state.pause_training() if state.timestamp.batch == batch else None)


def weights(made: Any) -> dict[str, Any]:
    return dict(made.state.model.state_dict())


@pytest.mark.filterwarnings("ignore:fit.. has nothing to do")  # where it resumes a finished run
@pytest.mark.parametrize("batch", range(1, 10))
@pytest.mark.parametrize("event", ["batch_end", "batch_checkpoint", "eval_batch_end", "eval_end"])
def test_a_run_that_pauses_and_is_resumed_is_the_run_that_did_not(event: str, batch: int, tmp_path: Path) -> None:
    logged, first, second = Memory(), Memory(), Memory()
    with run(tmp_path / "whole", loggers=logged) as whole:
        whole.fit()
    with run(tmp_path / "run", pausing(event, batch), loggers=first) as made:
        made.fit()
    with run(tmp_path / "run", autoresume=True, loggers=second) as resumed:
        resumed.fit()
    assert same(weights(resumed), weights(whole))
    assert resumed.state.metrics == whole.state.metrics
    assert first.metrics + second.metrics == logged.metrics


def test_it_ends_after_the_batch_is_saved_without_an_evaluation_and_has_its_fit_end(tmp_path: Path) -> None:
    events: list[str] = []
    wanted = ("batch_end", "batch_checkpoint", "eval_start", "fit_end")
    with run(tmp_path, pausing("batch_end", 1), writing_down(events, wanted)) as made:
        made.fit()
    assert events == ["batch_end", "batch_checkpoint", "fit_end"]
    assert [path.name for path in tmp_path.glob("ep*")] == ["ep0-ba1"]
    assert made.state.loop.pause_requested


def test_the_next_fit_of_the_same_trainer_continues(tmp_path: Path) -> None:
    with run(tmp_path / "whole") as whole:
        whole.fit()
    once = iter([True])
    pauses = at("eval_batch_end", lambda state: state.pause_training() if next(once, False) else None)
    with run(tmp_path / "run", pauses) as made:
        made.fit()
        assert made.state.timestamp.batch == 2
        made.fit()
    assert not made.state.loop.pause_requested
    assert same(weights(made), weights(whole))
    assert made.state.metrics == whole.state.metrics


def test_a_request_to_stop_overrides_a_request_to_pause() -> None:
    state = State()
    state.pause_training()
    state.stop_training()
    assert (state.loop.stop_requested, state.loop.pause_requested) == (True, False)
    state.pause_training()
    assert (state.loop.stop_requested, state.loop.pause_requested) == (True, False)


def sleeping(event: str, seconds: float) -> Any:
    return at(event, lambda state: time.sleep(seconds))


@pytest.mark.parametrize("event", ["batch_start", "eval_batch_start"])
def test_a_time_limit_pauses_after_the_batch_in_which_it_is_reached(event: str, tmp_path: Path) -> None:
    with run(tmp_path, sleeping(event, 1.1), TimeLimit("1sec")) as made:
        started_s = time.monotonic()
        made.fit()
    assert time.monotonic() - started_s < 2
    assert made.state.timestamp.batch == (1 if event == "batch_start" else 2)
    assert made.state.loop.pause_requested


def test_a_resumed_run_has_the_whole_limit_again(tmp_path: Path) -> None:
    for batch in (2, 4):
        with run(tmp_path, sleeping("batch_start", 0.6), TimeLimit("1sec"), autoresume=True) as made:
            made.fit()
        assert made.state.timestamp.batch == batch


def test_a_time_limit_that_stops_ends_the_training_with_the_last_evaluation() -> None:
    made = trainer(
        batches(8, 8, 8),
        callbacks=[sleeping("batch_start", 1.1), TimeLimit("1sec", then="stop")],
        eval_dataloader=batches(4),
    )
    with made:
        made.fit()
    assert made.state.timestamp.batch == 1
    assert "eval/loss" in made.state.metrics
    assert not made.state.loop.pause_requested


def test_a_pause_without_a_saver_is_refused_at_the_start() -> None:
    with trainer(callbacks=TimeLimit("1h")) as made, pytest.raises(ArgumentError, match="then='stop'"):
        made.fit()


@pytest.mark.parametrize(("arguments", "why"), [(("10ep",), "'10ep'.*max_duration"), (("1h", "end"), "then='end'")])
def test_a_limit_is_a_time(arguments: Any, why: str) -> None:
    with pytest.raises(ArgumentError, match=why):
        TimeLimit(*arguments)


def test_a_pause_between_two_evaluation_loaders_evaluates_none_twice(tmp_path: Path) -> None:
    def made(folder: Path, *callbacks: Any, loggers: Any, **settings: Any) -> Any:
        loaders = {"first": batches(4, 4), "second": batches(5, 3)}
        return trainer(
            batches(8, 8),
            net(),
            max_duration="2ep",
            eval_dataloader=loaders,
            seed=2,
            callbacks=[*callbacks, CheckpointSaver(folder, "100ba")],
            loggers=loggers,
            **settings,
        )

    def pause(state: State) -> None:
        if state.dataloader_label == "second" and state.timestamp.batch == 2:
            state.pause_training()

    logged, first, second = Memory(), Memory(), Memory()
    with made(tmp_path / "whole", loggers=logged) as whole:
        whole.fit()
    with made(tmp_path / "run", at("eval_batch_end", pause), loggers=first) as paused:
        paused.fit()
    with made(tmp_path / "run", loggers=second, autoresume=True) as resumed:
        resumed.fit()
    assert first.metrics + second.metrics == logged.metrics
    assert resumed.state.metrics == whole.state.metrics


def test_a_fit_with_less_time_than_its_evaluation_takes_makes_progress(tmp_path: Path) -> None:
    reached = []
    for _ in range(4):
        naps = [sleeping("eval_batch_start", 0.7), TimeLimit("1sec")]
        with run(tmp_path, *naps, autoresume=True) as made:
            made.fit()
        reached.append(made.state.timestamp.batch)
    assert reached == [2, 3, 4, 5]


def test_a_pause_that_was_requested_before_the_fit_does_not_pause_it(tmp_path: Path) -> None:
    with run(tmp_path, pausing("batch_end", 3)) as made:
        made.fit()
    with run(tmp_path, autoresume=True) as resumed:
        resumed.state.pause_training()
        resumed.fit()
    assert resumed.state.timestamp.batch == 9
