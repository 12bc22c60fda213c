"""The status of a run: its phases, what they refuse, and what is saved of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine_core import Callback, Logger, State, Timestamp
from engine_core.errors import CheckpointError, EngineError
from engine_core.loop.status import BegunEvaluation, Phase, RunStatus
from engine_core.state import LoopControl

from .parts import at, batches, trainer


def test_a_fit_is_training_and_idle_again_whatever_ends_it() -> None:
    seen: list[Phase] = []

    def fails(outputs: Any, targets: Any) -> Any:
        seen.append(made._session.status.phase)
        raise ZeroDivisionError

    made = trainer(loss_fn=fails)
    with pytest.raises(ZeroDivisionError):
        made.fit()
    assert (seen, made._session.status.phase) == ([Phase.TRAINING], Phase.IDLE)


@pytest.mark.parametrize("phase", [Phase.IDLE, Phase.RESUMED, Phase.TRAINING, Phase.STEPPING])
def test_after_an_evaluation_the_run_is_what_it_was(phase: Phase) -> None:
    def evaluates_again(state: State) -> None:
        assert status.phase is Phase.EVALUATING
        with pytest.raises(EngineError, match=r"an evaluation is running: eval\(\) can't be called .*; call it aft"):
            made.eval()

    made = trainer(eval_dataloader=batches(8), callbacks=at("eval_start", evaluates_again))
    status = made._session.status
    status.phase = phase
    made.eval()
    assert status.phase is phase


@pytest.mark.parametrize(
    ("phase", "message"),
    [
        (Phase.TRAINING, "fit is running: fit"),
        (Phase.STEPPING, "fit is running: fit"),
        (Phase.EVALUATING, "an evaluation is running: fit"),
    ],
)
def test_a_fit_in_a_fit_or_in_an_evaluation_is_refused_and_forgets_no_request(phase: Phase, message: str) -> None:
    state = State(loop=LoopControl(stop_requested=True))
    status = RunStatus(state)
    status.phase = phase
    with pytest.raises(EngineError, match=message):
        status.check_can("fit")
    assert (status.phase, state.loop.stop_requested) == (phase, True)


@pytest.mark.parametrize(
    ("is_resumed", "pauses", "stops"),
    [(False, False, False), (False, True, False), (True, False, True), (True, True, False)],
)
def test_a_fit_forgets_what_was_asked_of_an_earlier_one_but_not_that_the_saved_run_was_stopped(
    is_resumed: bool, pauses: bool, stops: bool
) -> None:
    state = State(loop=LoopControl(stop_requested=True, pause_requested=pauses, skip_requested=True))
    status = RunStatus(state)
    if is_resumed:
        status.resume()
    status.begin_fit()
    assert (state.loop.stop_requested, state.loop.pause_requested, state.loop.skip_requested) == (stops, False, False)


def test_only_the_step_at_the_position_that_was_loaded_is_the_first_one() -> None:
    state = State(timestamp=Timestamp(batch=7))
    status = RunStatus(state)
    before = status.is_first_step_after_resuming(7)
    status.resume()
    assert (before, [status.is_first_step_after_resuming(batch) for batch in (6, 7, 8)]) == (
        False,
        [False, True, False],
    )


def test_what_is_owed_and_a_stop_survive_a_checkpoint_and_a_pause_does_not() -> None:
    state = State(loop=LoopControl(stop_requested=True, pause_requested=True))
    status, other = RunStatus(state), RunStatus(State())
    status.evaluated_at, status.owed = 3, BegunEvaluation({"eval/loss": 0.5}, None, "epoch_checkpoint")
    other.load_state_dict(status.state_dict())
    assert (other.evaluated_at, other.owed) == (3, status.owed)
    assert status.state_dict()["stop_requested"] is False
    with pytest.raises(CheckpointError, match="the checkpoint awaits 'fit_end', at which nothing is saved"):
        other.load_state_dict({**status.state_dict(), "awaited": "fit_end"})


def test_an_interrupted_evaluation_is_owed_with_its_results_and_counts_only_when_it_is_finished() -> None:
    state = State()
    status = RunStatus(state)
    status.evaluated_at = 3
    state.timestamp = Timestamp(batch=5)
    assert status.begin_evaluation() == BegunEvaluation()
    begun = BegunEvaluation({"eval/loss": 0.5}, {"own": []})
    status.owe_evaluation("batch_checkpoint", begun)
    assert (status.evaluated_at, status.owed) == (3, (*begun[:2], "batch_checkpoint"))
    assert status.begin_evaluation() == (*begun[:2], "batch_checkpoint")
    assert (status.evaluated_at, status.owed, status.begin_evaluation()) == (5, None, None)


class FitsAgain(Callback):
    """Calls `fit` at each forward pass and evaluation, and keeps what a refusal could have changed."""

    trainer: Any

    def __init__(self) -> None:
        self.seen: list[tuple[object, object]] = []

    def after_forward(self, state: State, logger: Logger) -> None:
        before = self.now()
        with pytest.raises(EngineError, match=r"fit is running: fit\(\) can't be called from its events"):
            self.trainer.fit("5ep")
        self.seen.append((before, self.now()))

    def eval_start(self, state: State, logger: Logger) -> None:
        before = self.now()
        with pytest.raises(EngineError, match="an evaluation is running: fit"):
            self.trainer.fit("5ep")
        self.seen.append((before, self.now()))

    def now(self) -> tuple[object, ...]:
        state, counted_s = self.trainer.state, self.trainer._session.seam.counted_s
        return state.max_duration, state.model.training, torch.get_rng_state().tolist(), counted_s, state.loop.closure


def test_a_refused_fit_changes_nothing() -> None:
    callback = FitsAgain()
    callback.trainer = trainer(callbacks=[callback], eval_dataloader=batches(8))
    callback.trainer.fit()
    assert len(callback.seen) == 3
    assert [before for before, _ in callback.seen] == [after for _, after in callback.seen]
