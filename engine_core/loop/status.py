"""The phase of a run, across fits, and the evaluation it owes. Knows State, but neither loop nor Trainer."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, NamedTuple

from ..errors import CheckpointError, EngineError
from ..state import State


class Phase(Enum):
    """What a run is doing, one thing at a time."""

    IDLE = auto()
    """No fit is running."""
    RESUMED = auto()
    """No fit has run since a checkpoint was loaded, so even at the end an evaluation may still be due."""
    TRAINING = auto()
    STEPPING = auto()
    """The gradients are computed and the optimizers have not stepped: a closure can be called."""
    EVALUATING = auto()
    PREDICTING = auto()
    """An iterator that `predict` returned has begun and not ended; in between its caller's code runs."""


class BegunEvaluation(NamedTuple):
    """How far an evaluation is; if a pause or a signal interrupted it, the next fit finishes it before it trains.

    Args:
        results: of the loaders that are done.
        generators: the states of the generators when the loader that is not done began; None: none was interrupted.
        then: the event at which savers wait for it, if it is owed.
    """

    results: dict[str, float] = {}  # noqa: RUF012  nothing writes to it
    generators: Mapping[str, Any] | None = None
    then: str = ""


class RunStatus:
    """The phase of a run, its requests to end, which are in `state.loop`, and the evaluation that it has to finish.

    Attributes:
        phase: set here, but for STEPPING, EVALUATING and PREDICTING, which are set and left by what enters them.
        evaluated_at: the batch count at the latest evaluation, so that none runs twice at one position.
        evaluated: a mark of the weights that the latest evaluation saw, if an epoch ended at once after it.
        owed: an evaluation that was interrupted.
        has_ended: has FIT_END been fired, or is it being fired, for a training that is complete?
        reopens_epoch: an exception made algorithms undo what they did at EPOCH_START, so it has to fire again.
    """

    def __init__(self, state: State) -> None:
        self.phase = Phase.IDLE
        self.evaluated_at: int | None = None
        self.evaluated: int | None = None
        self.owed: BegunEvaluation | None = None
        self.has_ended = self.reopens_epoch = False
        self._state = state
        self._resumed_at: int | None = None
        self._evaluated_before: int | None = None

    def check_can(self, call: str) -> None:
        """Raise EngineError unless `fit`, `eval` or `predict` can be called now: in a fit, only `eval` can."""
        if self.phase is Phase.PREDICTING:
            raise EngineError(
                f"a prediction is running, so {call}() can't be called: take all that the iterator of predict() gives, "
                "or close() it"
            )
        in_evaluation = self.phase is Phase.EVALUATING
        if in_evaluation or (call != "eval" and self.phase not in (Phase.IDLE, Phase.RESUMED)):
            what = "an evaluation" if in_evaluation else "fit"
            raise EngineError(f"{what} is running: {call}() can't be called from its events; call it afterwards")

    def begin_fit(self) -> None:
        """Be TRAINING until `end_fit`, and drop the requests made to an earlier fit."""
        loop = self._state.loop
        # The saved run may have been asked to stop, and not have stopped yet.
        if self.phase is not Phase.RESUMED or loop.pause_requested or self.has_ended:
            loop.stop_requested, loop.stop_reason = False, None
        self.has_ended = False
        loop.pause_requested = loop.pause_agreed = loop.skip_requested = False
        self.phase = Phase.TRAINING

    def end_fit(self) -> None:
        """Be IDLE again, whatever ended the fit."""
        self.phase = Phase.IDLE

    def begin_evaluation(self) -> BegunEvaluation | None:
        """Return how far an interrupted evaluation is; None: there was one at this position."""
        owed, self.owed, self.evaluated = self.owed, None, None
        self._evaluated_before, self.evaluated_at = self.evaluated_at, self._state.timestamp.batch
        if self._evaluated_before == self.evaluated_at:
            return None
        return owed or BegunEvaluation()

    def owe_evaluation(self, then: str, begun: BegunEvaluation) -> None:
        """Note that the evaluation that began was interrupted: it counts only when a later fit has finished it."""
        self.evaluated_at, self.owed = self._evaluated_before, begun._replace(then=then)

    def resume(self) -> None:
        """Be RESUMED at the current position; the next step is the first with a loaded state."""
        self.phase, self._resumed_at = Phase.RESUMED, self._state.timestamp.batch

    def is_first_step_after_resuming(self, batch: int) -> bool:
        """Is the step at this batch count the first one with a loaded state?"""
        return batch == self._resumed_at

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs."""
        owed, loop = self.owed or BegunEvaluation(), self._state.loop
        asked_to_stop = loop.stop_requested and not loop.pause_requested
        return {
            "evaluated_at": self.evaluated_at,
            "evaluated": self.evaluated,
            "awaited": owed.then or None,
            "found": owed.results,
            "evaluation": owed.generators,
            "stop_requested": asked_to_stop,
            "stop_reason": loop.stop_reason if asked_to_stop else None,
            "has_ended": self.has_ended,
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; raise a CheckpointError for an event at which nothing is saved."""
        then = saved["awaited"]
        if then not in (None, "batch_checkpoint", "epoch_checkpoint"):
            raise CheckpointError(f"the checkpoint awaits {then!r:.80}, at which nothing is saved")
        results = {str(name): float(value) for name, value in saved["found"].items()}
        self.evaluated = saved.get("evaluated")  # older versions saved none, nor generators
        begun = BegunEvaluation(results, saved.get("evaluation"), then or "")
        self.evaluated_at, self.owed = saved["evaluated_at"], None if then is None else begun
        loop = self._state.loop
        loop.stop_requested = saved["stop_requested"] is True
        why = saved.get("stop_reason")  # older versions saved neither this nor the next
        loop.stop_reason = why if isinstance(why, str) else None
        self.has_ended = saved.get("has_ended") is True
