"""End training when an evaluation result is no longer getting better, or good enough. Knows no Trainer."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..arguments import check_number, check_whole
from ..callback import Callback
from ..errors import ArgumentError
from .monitor import Monitor

if TYPE_CHECKING:
    from ..logger import Logger
    from ..state import State

__all__ = ["EarlyStopper", "ThresholdStopper"]

log = logging.getLogger("engine_core")


class _Stopper(Callback):
    """Judges each evaluation of a fit on the loader that a metric names, and stops training with a word about it."""

    def __init__(self, metric: str) -> None:
        self._monitor = Monitor(metric)
        self.metric = metric
        self._is_in_own_loop = False

    def fit_start(self, state: State, logger: Logger) -> None:
        """Look whether somebody evaluates there."""
        self._monitor.check_loader(state)
        self._is_in_own_loop = state.snapshot is None

    def fit_end(self, state: State, logger: Logger) -> None:
        """Count no evaluation of a loop of one's own any more."""
        self._is_in_own_loop = False

    def eval_end(self, state: State, logger: Logger) -> None:
        """Judge what was found, if it is the fit that evaluates, on the loader that is monitor."""
        if self._counts(state):
            self._judge(self._monitor.value_in(state), state, logger)

    def _judge(self, value: float, state: State, logger: Logger) -> None:
        raise NotImplementedError

    def _counts(self, state: State) -> bool:
        """Is this the run's own loader in a fit? Who evaluates on another one may give it the same label."""
        if state.dataloader_label != self._monitor.label:
            return False
        if state.snapshot is None:  # the Trainer's fit offers one as long as it runs, also if an exception ends it
            return self._is_in_own_loop
        return state.dataloader is state.evaluators.get(self._monitor.label)

    def _stop(self, why: str, state: State) -> None:
        """Stop training; by default the log shows warnings only, and who waits for the end shall know of it."""
        state.stop_training()
        if not state.rank:
            log.warning("%s ends training at batch %d: %s", type(self).__name__, state.timestamp.batch, why)


class EarlyStopper(_Stopper):
    """Stops training when an evaluation result has not become better for some time.

    The log gets the number of evaluations since the best one as `early_stopper/waited/<metric>`. A fit that follows
    one that was stopped has as many evaluations as the first to become better than the best so far.

    Args:
        metric: an evaluation result, as `eval/loss`; of a loss smaller is better, else larger, and `min:` or `max:`
            before the name says so.
        patience: after how many evaluations in a row that are not better it stops.
        min_delta: what is better by no more than this is not better.

    Attributes:
        best: the best value so far; a value that is not finite is never the best.
        waited: how many evaluations there were since.

    Example:
        >>> EarlyStopper("max:eval/f1", patience=5, min_delta=0.001).patience
        5
    """

    def __init__(self, metric: str = "eval/loss", patience: int = 3, min_delta: float = 0.0) -> None:
        super().__init__(metric)
        self.patience = check_whole("patience", patience, "[1, inf)", "how many evaluations may be no better")
        self.min_delta = check_number("min_delta", min_delta, "[0, inf)", "by how much better an evaluation has to be")
        self.best: float | None = None
        self.waited = 0
        self._counted_at: int | None = None

    def init(self, state: State, logger: Logger) -> None:
        """Forget what was found in a former run."""
        self.best, self.waited, self._counted_at = None, 0, None

    def fit_start(self, state: State, logger: Logger) -> None:
        """Begin to count anew if the fit before was stopped, and this one was asked for all the same."""
        super().fit_start(state, logger)
        if self.waited >= self.patience and not state.stop_requested:
            self.waited = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the best value, how many evaluations there were since, and at which batch the latest was."""
        return {"best": self.best, "waited": self.waited, "counted_at": self._counted_at}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on counting."""
        where = "in the state of EarlyStopper"
        if missing := sorted({"best", "waited", "counted_at"} - set(state)):
            raise ArgumentError(f"there is no {', no '.join(missing)} {where}, but {dict(state)!r}")
        best, counted_at = state["best"], state["counted_at"]
        best = None if best is None else check_number("best", best, "(-inf, inf)", where)
        counted_at = None if counted_at is None else check_whole("counted_at", counted_at, "[0, inf)", where)
        self.waited = check_whole("waited", state["waited"], "[0, inf)", where)
        self.best, self._counted_at = best, counted_at

    def _judge(self, value: float, state: State, logger: Logger) -> None:
        """Count the evaluation; one that a signal has broken off comes a second time, for the same batch."""
        now = state.timestamp.batch
        if now != self._counted_at:
            self._counted_at = now
            self._count(value, state)
        logger.log_metrics({f"early_stopper/waited/{self._monitor.key}": self.waited})

    def _count(self, value: float, state: State) -> None:
        if self._monitor.is_better(value, self.best, self.min_delta):
            self.best, self.waited = value, 0
            return
        self.waited += 1
        if self.waited >= self.patience:
            best = "was never finite" if self.best is None else f"is not better than {self.best:.6g}"
            self._stop(f"{self._monitor.key} {best} for {self.waited} evaluations in a row", state)


class ThresholdStopper(_Stopper):
    """Stops training as soon as an evaluation result is at least as good as a threshold.

    Args:
        metric: an evaluation result, as `eval/accuracy`; larger is better, of a loss smaller, and `min:` or `max:`
            before the name says so.
        threshold: a value that is not finite never reaches it.

    Example:
        >>> ThresholdStopper("eval/accuracy", 0.95).threshold
        0.95
    """

    def __init__(self, metric: str, threshold: float) -> None:
        super().__init__(metric)
        self.threshold = check_number("threshold", threshold, "(-inf, inf)", "what is good enough")

    def _judge(self, value: float, state: State, logger: Logger) -> None:
        if self._monitor.reaches(value, self.threshold):
            self._stop(f"{self._monitor.key} is {value:.6g}, and {self.threshold:.6g} is good enough", state)
