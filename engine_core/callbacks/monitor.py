"""An evaluation result that a callback watches: its name, its value, which of two values is better. Runs nothing."""

from __future__ import annotations

import math

from ..errors import ArgumentError, ArgumentTypeError, did_you_mean, suggestion
from ..results import Results
from ..state import State

__all__ = ["Monitor"]

_WAYS = ("min:", "max:")


class Monitor:
    """An evaluation result by its name, `<label>/<metric>`, and which of two of its values is the better one.

    `Results` says which values are better, and `min:` or `max:` before the name overrides that, a metric's own
    `higher_is_better` too, because it is explicit. A value that is not finite is never better.

    Attributes:
        key: the name among `state.metrics`.
        label: that of the evaluation loader.
        smaller_is_better: None while nothing says so.

    Example:
        >>> Monitor("eval/loss").is_better(0.3, than=0.5)
        True
        >>> Monitor("min:eval/perplexity").key
        'eval/perplexity'
    """

    def __init__(self, metric: str) -> None:
        if not isinstance(metric, str):
            raise ArgumentTypeError(f"metric={metric!r} ({type(metric).__name__}) has to be a name such as 'eval/loss'")
        self._way = next(filter(metric.startswith, _WAYS), "")
        self.key = metric.removeprefix(self._way)
        self.label, _, last = self.key.partition("/")
        if not self.label or not last:
            raise ArgumentError(
                f"metric={metric!r} has to be the label of an evaluation loader and a result, such as 'eval/loss' or "
                "'min:eval/perplexity'"
            )
        self.smaller_is_better = self._direction_in(Results())

    def follow(self, state: State) -> None:
        """Take the direction from a run's results, for which metrics and a config may say it."""
        self.smaller_is_better = self._direction_in(state.results)
        if self.smaller_is_better is None:
            names = ["loss", *state.metric_objects]
            is_known = self.key.split("/")[1] in names
            near = "" if is_known else suggestion(self.key, [f"{self.label}/{name}" for name in names])
            raise ArgumentError(
                f"metric={self.key!r}: neither the metric nor its name says which of two values is better; write "
                f"'min:{self.key}' if it is the lower one, or 'max:{self.key}'{near}"
            )

    def _direction_in(self, results: Results) -> bool | None:
        return self._way == "min:" if self._way else results.is_lower_better(self.key)

    def check_loader(self, state: State) -> None:
        """Raise unless there is the evaluation loader that produces the result."""
        if not state.evaluators:
            raise ArgumentError(
                f"nothing is evaluated, so there is no {self.key!r} to watch: give eval_dataloader to the Trainer, or "
                "set state.evaluators in a loop of your own"
            )
        if self.label not in state.evaluators:
            raise ArgumentError(
                f"no evaluation loader is called {self.label!r}, so there is no {self.key!r} to watch"
                f"{did_you_mean(self.label, state.evaluators)}"
            )

    def value_in(self, state: State) -> float:
        """Return the result of the latest evaluation."""
        if self.key not in state.metrics:
            raise ArgumentError(f"the evaluation has no result {self.key!r}{did_you_mean(self.key, state.metrics)}")
        return float(state.metrics[self.key])

    def is_better(self, value: float, than: float | None, by_more_than: float = 0.0) -> bool:
        """Is the value better by more than `by_more_than`? A finite one is better than None."""
        if not math.isfinite(value):
            return False
        if than is None:
            return True
        gain = than - value if self.smaller_is_better else value - than
        return gain > by_more_than

    def reaches(self, value: float, threshold: float) -> bool:
        """Is the value finite, and at least as good as the threshold?"""
        return math.isfinite(value) and (value <= threshold if self.smaller_is_better else value >= threshold)
