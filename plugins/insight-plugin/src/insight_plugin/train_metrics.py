"""Compute metrics of the training's own outputs, and log them each epoch. Knows no Trainer."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from engine_core.algorithm import Algorithm, algorithm_metadata
from engine_core.callback import Callback
from engine_core.errors import ArgumentError, CheckpointError, CheckpointWarning
from engine_core.event import Event
from engine_core.logger import Logger
from engine_core.messages import plural, warn
from engine_core.ranks import Ranks
from engine_core.state import State

if TYPE_CHECKING:
    from engine_core.trainer import Measurement

__all__ = ["TrainMetrics"]

_EVENTS = [*Event]
_IN_A_BATCH = frozenset(_EVENTS[_EVENTS.index(Event.AFTER_DATALOADER) : _EVENTS.index(Event.AFTER_TRAIN_BATCH)])
_NOTHING = nullcontext()
_LOGGED_BY_OTHERS = ("loss", "loss_epoch", "gradient_norm", "gradient_norm_clipped")


class TrainMetrics(Callback):
    """Logs metrics of the training batches each epoch, as `train/<name>`.

    They see what training computes anyway: the model's outputs in train mode, while the weights change from batch to
    batch, and the targets as BEFORE_FORWARD leaves them, microbatch by microbatch; on several processes
    those of each rank come together as in an evaluation. A batch in which an algorithm tagged `target_mixing` ran is
    left out, and a warning says so once: its outputs are of mixed inputs. Without loggers nothing is computed. What an
    epoch has so far is saved with the run, for each rank.

    Args:
        metrics: objects with `update(outputs, targets)`, `compute()` and `reset()`, by name, which are copied; None:
            those of the Trainer.

    Raises:
        ArgumentError, ArgumentTypeError: (a ValueError, a TypeError) for anything else, also what several ranks can't
            have, and when `fit` starts if there are no metrics, or the model has its own loss, which leaves open what
            the targets are.

    Example:
        >>> TrainMetrics().state_dict()  # nothing has been seen of an epoch
        {}
    """

    def __init__(self, metrics: Mapping[str, Any] | None = None) -> None:
        if metrics is not None:
            from engine_core.trainer import check_metrics  # noqa: PLC0415  it can be listed without torch

            metrics = _check_names(check_metrics(metrics, None, knows_targets=True))
        self._given = metrics
        self._metrics: dict[str, Any] | None = None
        self._measurement: Measurement | None = None
        self._ranks = Ranks()
        self._saved: list[dict[str, Any]] = []
        self._seen: set[str] = set()
        self._batch: Any = None
        self._mixer: str | None = None
        self._is_logged = self._awaits = self._is_over = self._has_told = self._has_looked = False
        self._unsaved: set[str] = set()

    def init(self, state: State, logger: Logger) -> None:
        """Forget an earlier run, and check that several ranks can have these metrics."""
        if self._given is not None:
            from engine_core.trainer import check_metrics  # noqa: PLC0415  it can be listed without torch

            check_metrics(self._given, None, knows_targets=True, ranks=state.ranks)
        self._metrics, self._saved, self._seen = None, [], set()
        self._has_told = self._has_looked = False
        self._unsaved = set()

    def fit_start(self, state: State, logger: Logger) -> None:
        """Copy the metrics, unless an earlier fit of the run has."""
        self._mixer, self._is_over = None, False
        if not state.objective.knows_targets():
            raise ArgumentError(
                f"train_metrics needs batches of (inputs, targets) and a loss_fn, but {type(state.model).__name__} has "
                "its own loss, so nothing says which part of a batch the targets are: say so, "
                "Trainer(objective=engine_core.Objective(targets='labels')), or let its loss(outputs, batch) return a "
                "dict with a 'total', whose parts are logged as train/loss/<part>"
            )
        from engine_core.trainer import Measurement, load_state  # noqa: PLC0415  it can be listed without torch

        self._is_logged = state.ranks.any(logger.destinations)  # on rank 0 only, as a rule
        if self._metrics is None:
            self._metrics = {name: _copied(metric, state) for name, metric in self._sources(state).items()}
            self._measurement, self._ranks = Measurement(self._metrics, state.ranks), state.ranks
            own = self._saved_of(state.ranks)
            self._seen = {name for name in self._metrics if own.get(name)}
            for name in self._seen:
                load_state(self._metrics[name], own[name], state.device or "cpu")
            self._saved = []

    def around_apply(self, algorithm: Algorithm, name: str, event: Event, state: State) -> AbstractContextManager[None]:
        """Note who mixes targets, and that what an algorithm computes at AFTER_TRAIN_BATCH is not another batch."""
        if event in _IN_A_BATCH and "target_mixing" in algorithm_metadata(algorithm).tags:
            self._mixer = name
        elif event is Event.AFTER_TRAIN_BATCH:
            self._is_over = True
        return _NOTHING

    def before_forward(self, state: State, logger: Logger) -> None:
        """Keep the batch, whose targets algorithms may replace for the loss."""
        self._awaits = self._is_logged and not self._is_over
        if self._awaits:
            self._batch = state.batch

    def after_loss(self, state: State, logger: Logger) -> None:
        """Update the metrics with the outputs of a microbatch."""
        awaits, batch, self._awaits, self._batch = self._awaits, self._batch, False, None
        if not awaits:
            return
        if self._mixer is None:
            self._take(*state.objective.for_metrics(state.outputs, batch), state)
        elif not self._has_told:
            self._has_told = True
            warn(
                f"train_metrics leaves out the batches in which {self._mixer} mixes targets, since their outputs are "
                "of mixed inputs; an epoch of nothing else logs no train/<metric>",
                UserWarning,
            )

    def after_train_batch(self, state: State, logger: Logger) -> None:
        """Look at the values after the first batch; what is computed from here on is of no other batch."""
        from engine_core.trainer import check_values  # noqa: PLC0415  it can be listed without torch

        self._is_over = True
        if self._seen and not self._has_looked:
            self._has_looked = True
            check_values(self._metrics or {}, "train")

    def batch_end(self, state: State, logger: Logger) -> None:
        """Be ready for the next batch."""
        self._mixer, self._is_over = None, False

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Log the metrics of the epoch."""
        if not self._seen:
            return
        from engine_core.trainer import as_numbers  # noqa: PLC0415  it can be listed without torch

        results: dict[str, float] = {}
        for name, metric in (self._metrics or {}).items():
            if name in self._seen and self._measurement is not None:  # else a resumed run has nothing of it
                results |= as_numbers(f"train/{name}", self._measurement.compute(name))
            metric.reset()
        self._seen = set()
        logger.log_metrics(results)

    def state_dict(self) -> dict[str, Any]:
        """Return what the metrics have of the epoch so far; a warning names those that can't be saved."""
        saved = self._saved
        if self._metrics is not None:
            own = {name: self._state_of(name, metric) for name, metric in self._metrics.items() if name in self._seen}
            saved = self._ranks.each(own)
        return {"metrics": saved} if any(saved) else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the epoch of the saved run, when the fit starts.

        Raises:
            ArgumentError: (a ValueError) for a state that `state_dict` never returns.
        """
        saved = state.get("metrics", [])
        if not isinstance(saved, list) or not all(isinstance(own, Mapping) for own in saved):
            raise ArgumentError(f"the state of train_metrics has metrics={saved!r:.80}, which it never saved")
        self._metrics, self._saved = None, [dict(own) for own in saved]

    def _saved_of(self, ranks: Ranks) -> Mapping[str, Any]:
        """Return what the metrics of this rank had seen, or nothing if the ranks were others."""
        if len(self._saved) == ranks.size:
            return self._saved[ranks.rank]
        if self._saved:
            warn(
                f"train_metrics was saved on {plural(len(self._saved), 'rank', 'ranks')} and resumes on {ranks.size}, "
                "so the metrics of this epoch are those of its remaining batches",
                CheckpointWarning,
            )
        return {}

    def _sources(self, state: State) -> Mapping[str, Any]:
        sources = state.metric_objects if self._given is None else self._given
        if not sources:
            raise ArgumentError(
                "train_metrics has no metrics: give some to the Trainer, as metrics={'accuracy': ...}, or to itself"
            )
        return _check_names(sources)

    def _take(self, outputs: Any, targets: Any, state: State) -> None:
        import torch  # noqa: PLC0415  it can be listed without torch

        from engine_core.batch import map_batch  # noqa: PLC0415
        from engine_core.trainer import in_float32  # noqa: PLC0415

        assert self._measurement is not None
        outputs = map_batch(outputs, lambda leaf: leaf.detach() if isinstance(leaf, torch.Tensor) else leaf)
        with torch.no_grad():
            self._measurement.take(outputs if state.precision == "fp32" else in_float32(outputs), targets, state)
        self._seen = {*(self._metrics or {})}

    def _state_of(self, name: str, metric: Any) -> dict[str, Any]:
        """Return what a metric has so far, or nothing with a warning if a checkpoint can't hold that."""
        from engine_core.checkpoint import flatten  # noqa: PLC0415  it can be listed without torch
        from engine_core.trainer import state_of  # noqa: PLC0415

        own, problem = state_of(metric), "nothing that changes is in its attributes or its state_dict"
        try:
            flatten(own, name, {})
        except CheckpointError as error:
            own, problem = {}, str(error)
        if not own and name not in self._unsaved:
            self._unsaved.add(name)
            warn(
                f"train_metrics can't save metric {name!r} ({problem}): a run that resumes within an epoch logs "
                f"train/{name} of the rest of that epoch",
                CheckpointWarning,
            )
        return copy.deepcopy(own)


def _check_names(metrics: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in metrics:
        if name in _LOGGED_BY_OTHERS:
            raise ArgumentError(
                f"train_metrics can't log a metric called {name!r}: train/{name} is a value of the training itself; "
                "rename the metric"
            )
    return metrics


def _copied(metric: Any, state: State) -> Any:
    """Return a copy on the run's device, with nothing in it."""
    made = copy.deepcopy(metric)
    made.reset()
    if state.device is not None and callable(getattr(made, "to", None)):
        made.to(state.device)
    return made
