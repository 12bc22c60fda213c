"""The evaluation results of a run: the last and the best value of each, and which of two values is better. A leaf."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .errors import ArgumentError

__all__ = ["Best", "Results"]

_LOWER_IS_BETTER = ("loss", "error", "perplexity")


class Best(NamedTuple):
    """The best value of a result, and the batches and epochs that were complete when it was measured."""

    value: float
    step: int
    epoch: int


@dataclass
class Results:
    """The last and the best value of each evaluation result, by its name `<label>/<metric>`.

    Higher is better, but for names that end in `loss`, `error` or `perplexity`. Of equal values the first is the best
    one, and a value that is not finite never is.

    Attributes:
        last: the latest values.
        best: for each result that was ever finite.
        improved: the results whose value in the latest evaluation is better than all before it.

    Example:
        >>> results = Results()
        >>> for step, loss in enumerate([0.5, 0.3, 0.4], 1):
        ...     results.record({"eval/loss": loss}, step, epoch=step)
        >>> results.last["eval/loss"], results.best["eval/loss"]
        (0.4, Best(value=0.3, step=2, epoch=2))
    """

    last: dict[str, float] = field(default_factory=dict)
    best: dict[str, Best] = field(default_factory=dict)
    improved: set[str] = field(default_factory=set)
    _is_lower_better: dict[str, bool] = field(default_factory=dict)

    def set_directions(self, lower: Iterable[str] = (), higher: Iterable[str] = ()) -> None:
        """Overrule which direction is better for these results, each `<label>/<metric>` or the metric of all loaders.

        Raises:
            ArgumentError: (a ValueError) for a name that is in both.
        """
        lower, higher = set(lower), set(higher)
        if both := sorted(lower & higher):
            raise ArgumentError(f"{both[0]!r} can't be better both if it is lower and if it is higher: give it once")
        self._is_lower_better = {**dict.fromkeys(lower, True), **dict.fromkeys(higher, False)}

    def is_lower_better(self, name: str) -> bool:
        """Is the lower of two values of this result the better one?"""
        told = self._is_lower_better
        _, _, metric = name.partition("/")
        # A metric may compute several values: of `eval/dist/a` and `eval/dist/b` one may have said `dist`.
        for whole in (name, metric):
            parts = whole.split("/")
            for known in ("/".join(parts[:count]) for count in range(len(parts), 0, -1)):
                if known in told:
                    return told[known]
        return name.lower().endswith(_LOWER_IS_BETTER)

    def begin(self) -> None:
        """Begin an evaluation, in which nothing has improved yet."""
        self.improved = set()

    def record(self, values: Mapping[str, float], step: int, epoch: int) -> None:
        """Take the results of an evaluation after `step` batches and `epoch` epochs."""
        for name, value in values.items():
            self.last[name] = value
            best = self.best.get(name)
            if math.isfinite(value) and (best is None or self._is_better(name, value, best.value)):
                self.best[name] = Best(value, step, epoch)
                self.improved.add(name)

    def to_json(self) -> dict[str, dict[str, Any]]:
        """Return `{name: {"last": value, "best": {"value", "step", "epoch"} or None}}`."""
        return {
            name: {"last": value, "best": self.best[name]._asdict() if name in self.best else None}
            for name, value in self.last.items()
        }

    def load(self, saved: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore what `to_json` returned; the directions stay as they are."""
        self.improved = set()
        self.last = {str(name): float(entry["last"]) for name, entry in saved.items()}
        found = {str(name): entry["best"] for name, entry in saved.items() if entry["best"] is not None}
        self.best = {name: Best(float(b["value"]), int(b["step"]), int(b["epoch"])) for name, b in found.items()}

    def _is_better(self, name: str, value: float, than: float) -> bool:
        return value < than if self.is_lower_better(name) else value > than
