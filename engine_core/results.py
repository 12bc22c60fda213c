"""The evaluation results of a run: the last and the best value of each, and which of two values is better. A leaf."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .errors import ArgumentError

__all__ = ["Best", "Results"]

_LOWER = """
    loss error err mae mse rmse mape nll perplexity ppl bpc bpb wer cer ter fid kid lpips brier ece rank distance regret
""".split()  # noqa: SIM905  a list has a line for each word
_HIGHER = """
    acc accuracy f1 auc auroc ap map precision recall iou miou dice bleu rouge psnr ssim r2 score mcc kappa
""".split()  # noqa: SIM905
_CHUNK = re.compile(r"[^\W_]+")
_IN_CAMEL_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class Best(NamedTuple):
    """The best value of a result, and the batches and epochs that were complete when it was measured."""

    value: float
    step: int
    epoch: int


@dataclass
class Results:
    """The last and the best value of each evaluation result, by its name `<label>/<metric>`.

    Which is better says `set_directions`, else the metric itself, else the words of its name. Where none does, a result
    has a last value, but no best. Of equal values the first is the best one, and a value that is not finite never is.

    Attributes:
        last: the latest values.
        best: for each result that has a direction and was ever finite.
        improved: the results whose value in the latest evaluation is better than all before it.
        approximate: the results that depend on the size of the batches of the evaluation.
        higher_is_better: what metrics say of themselves, by name.

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
    approximate: set[str] = field(default_factory=set)
    higher_is_better: Mapping[str, bool] = field(default_factory=dict)
    _told: dict[str, bool] = field(default_factory=dict)

    def set_directions(self, lower: Iterable[str] = (), higher: Iterable[str] = ()) -> None:
        """Overrule which direction is better for these results, each `<label>/<metric>` or the metric of all loaders.

        It overrules the metrics too, because it was set for this run.
        """
        lower, higher = set(lower), set(higher)
        if both := sorted(lower & higher):
            raise ArgumentError(f"{both[0]!r} can't be better both if it is lower and if it is higher: give it once")
        self._told = {**dict.fromkeys(lower, False), **dict.fromkeys(higher, True)}

    def ask(self, metrics: Mapping[str, Any]) -> None:
        """Let metrics say what is better by their own `higher_is_better`, as those of torchmetrics do."""
        self.higher_is_better = dict(_own_directions(metrics))

    def is_lower_better(self, name: str) -> bool | None:
        """Is the lower of two values of this result the better one? None: nothing says so."""
        _, _, metric = name.partition("/")
        # A metric may compute several values: of `eval/dist/a` and `eval/dist/b` one may have said `dist`.
        for told, path in ((self._told, name), (self._told, metric), (self.higher_is_better, metric)):
            parts = path.split("/")
            for known in ("/".join(parts[:count]) for count in range(len(parts), 0, -1)):
                if known in told:
                    return not told[known]
        return _by_words(metric or name)

    def begin(self) -> None:
        """Begin an evaluation, in which nothing has improved yet."""
        self.improved = set()

    def record(self, values: Mapping[str, float], step: int, epoch: int, approximate: Collection[str] = ()) -> None:
        """Take the results of an evaluation after `step` batches and `epoch` epochs.

        Args:
            approximate: names of those that depend on the size of batches.
        """
        self.approximate = (self.approximate - values.keys()) | {*approximate}
        for name, value in values.items():
            self.last[name] = value
            if self._is_best(name, value, self.best.get(name)):
                self.best[name] = Best(value, step, epoch)
                self.improved.add(name)

    def to_json(self) -> dict[str, dict[str, Any]]:
        """Return `{name: {"last": value, "best": {"value", "step", "epoch"} or None}}`.

        Those that are approximate have `"approximate": True` besides.
        """
        return {
            name: {
                "last": value,
                "best": self.best[name]._asdict() if name in self.best else None,
                **({"approximate": True} if name in self.approximate else {}),
            }
            for name, value in self.last.items()
        }

    def load(self, saved: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore what `to_json` returned, except best values recorded under another direction.

        The directions stay as they are.
        """
        self.improved = set()
        self.last = {str(name): float(entry["last"]) for name, entry in saved.items()}
        self.approximate = {str(name) for name, entry in saved.items() if entry.get("approximate") is True}
        found = {str(name): entry["best"] for name, entry in saved.items() if entry["best"] is not None}
        bests = {name: Best(float(b["value"]), int(b["step"]), int(b["epoch"])) for name, b in found.items()}
        self.best = {
            name: best
            for name, best in bests.items()
            if self.is_lower_better(name) is not None and not self._is_best(name, self.last[name], best)
        }

    def _is_best(self, name: str, value: float, best: Best | None) -> bool:
        """Is a value better than the best before it?"""
        lower = self.is_lower_better(name)
        if lower is None or not math.isfinite(value):
            return False
        return best is None or (value < best.value if lower else value > best.value)


def _own_directions(metrics: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, bool]]:
    for name, metric in metrics.items():
        if isinstance(told := getattr(metric, "higher_is_better", None), bool):
            yield f"{prefix}{name}", told
        if all(callable(getattr(metric, method, None)) for method in ("keys", "items")):  # a collection of metrics
            yield from _own_directions(metric, f"{prefix}{name}/")


def _by_words(name: str) -> bool | None:
    """Return whether lower is better by the words of a name; None if they say nothing, or both."""
    words = set[str]()
    for chunk in _CHUNK.findall(name):
        whole = chunk.lower()  # `mIoU` is one word
        parts = [chunk] if whole in _LOWER or whole in _HIGHER else _IN_CAMEL_CASE.split(chunk)
        words.update(part.lower() for part in parts)
    lower, higher = not words.isdisjoint(_LOWER), not words.isdisjoint(_HIGHER)
    return None if lower is higher else lower
