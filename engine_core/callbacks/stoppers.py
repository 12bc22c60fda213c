"""End training when an evaluation result stops improving or is good enough. Knows no Trainer."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ..arguments import check_number, check_whole
from ..callback import Callback
from ..errors import ArgumentError
from ..logger import Logger
from ..messages import join_words, plural
from ..state import State
from .monitor import Monitor

__all__ = ["EarlyStopper", "ThresholdStopper"]

log = logging.getLogger("engine_core")


class _Stopper(Callback):
    """Checks each evaluation of a fit on the loader that a metric names, and logs why it stops training."""

    needs = ("stop",)

    def __init__(self, metric: str) -> None:
        self._monitor = Monitor(metric)
        self.metric = metric
        self._is_in_own_loop = False

    def init(self, state: State, logger: Logger) -> None:
        """Refuse a result that has no known direction."""
        self._monitor.follow(state)

    def fit_start(self, state: State, logger: Logger) -> None:
        """Check that the run evaluates on that loader."""
        self._monitor.check_loader(state)
        self._monitor.follow(state)
        self._is_in_own_loop = state.loop.snapshot is None

    def fit_end(self, state: State, logger: Logger) -> None:
        """Count no more evaluations of a custom loop."""
        self._is_in_own_loop = False

    def eval_end(self, state: State, logger: Logger) -> None:
        """Check the result, if it is the fit's own evaluation on the monitored loader."""
        if self._counts(state):
            self._judge(self._monitor.value_in(state), state, logger)

    def _judge(self, value: float, state: State, logger: Logger) -> None:
        raise NotImplementedError

    def _counts(self, state: State) -> bool:
        """Is this the run's own loader in a fit? Another loader may be evaluated under the same label."""
        if state.dataloader_label != self._monitor.label:
            return False
        if state.loop.snapshot is None:  # the Trainer's fit offers one while it runs, even if an exception ends it
            return self._is_in_own_loop
        return state.dataloader is state.evaluators.get(self._monitor.label)

    def _stop(self, why: str, state: State) -> None:
        """Stop training, and log why at WARNING, since the default log shows nothing below."""
        state.stop_training(f"{type(self).__name__}: {why}")
        if not state.rank:
            log.warning("%s ends training at batch %d: %s", type(self).__name__, state.timestamp.batch, why)


class EarlyStopper(_Stopper):
    """Stops training when an evaluation result has not improved for some time.

    It logs the number of evaluations since the best one as `early_stopper/waited/<metric>`. A fit after one that was
    stopped again gets `patience` evaluations to improve on the best so far.

    Args:
        metric: an evaluation result such as `eval/loss`; the metric or its name says which value is better, and `min:`
            or `max:` before the name overrides that.
        patience: how many evaluations in a row without an improvement stop training.
        min_delta: only an improvement by more than this counts.

    Attributes:
        best: the best value so far; always finite.
        waited: the number of evaluations since then.

    Example:
        >>> EarlyStopper("max:eval/f1", patience=5, min_delta=0.001).patience
        5
    """

    def __init__(self, metric: str = "eval/loss", patience: int = 3, min_delta: float = 0.0) -> None:
        super().__init__(metric)
        self.patience = check_whole("patience", patience, "[1, inf)", "how many evaluations may not improve")
        self.min_delta = check_number("min_delta", min_delta, "[0, inf)", "by how much an evaluation has to improve")
        self.best: float | None = None
        self.waited = 0
        self._counted_at: int | None = None

    def init(self, state: State, logger: Logger) -> None:
        """Forget the results of an earlier run."""
        super().init(state, logger)
        self.best, self.waited, self._counted_at = None, 0, None

    def fit_start(self, state: State, logger: Logger) -> None:
        """Restart counting if this stopper ended the previous fit."""
        super().fit_start(state, logger)
        if self.waited >= self.patience and not state.loop.stop_requested:
            self.waited = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the best value, the number of evaluations since, and the batch of the latest."""
        return {"best": self.best, "waited": self.waited, "counted_at": self._counted_at}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the counts."""
        where = "in the state of EarlyStopper"
        if missing := sorted({"best", "waited", "counted_at"} - set(state)):
            raise ArgumentError(f"the state of EarlyStopper lacks {join_words([*map(repr, missing)])}: {dict(state)!r}")
        best, counted_at = state["best"], state["counted_at"]
        best = None if best is None else check_number("best", best, "(-inf, inf)", where)
        counted_at = None if counted_at is None else check_whole("counted_at", counted_at, "[0, inf)", where)
        self.waited = check_whole("waited", state["waited"], "[0, inf)", where)
        self.best, self._counted_at = best, counted_at

    def _judge(self, value: float, state: State, logger: Logger) -> None:
        """Count the evaluation, once per batch: an interrupted one is repeated for the same batch."""
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
            best = "has not been finite" if self.best is None else f"has not improved on {self.best:.6g}"
            self._stop(
                f"{self._monitor.key} {best} for {plural(self.waited, 'evaluation', 'evaluations')} in a row", state
            )


class ThresholdStopper(_Stopper):
    """Stops training as soon as an evaluation result is at least as good as a threshold.

    Args:
        metric: an evaluation result such as `eval/accuracy`; the metric or its name says which value is better, and
            `min:` or `max:` before the name overrides that.
        threshold: a non-finite value never reaches it.

    Example:
        >>> ThresholdStopper("eval/accuracy", 0.95).threshold
        0.95
    """

    def __init__(self, metric: str, threshold: float) -> None:
        super().__init__(metric)
        self.threshold = check_number("threshold", threshold, "(-inf, inf)", "the value to reach")

    def _judge(self, value: float, state: State, logger: Logger) -> None:
        if self._monitor.reaches(value, self.threshold):
            self._stop(f"{self._monitor.key} is {value:.6g} and reaches {self.threshold:.6g}", state)
