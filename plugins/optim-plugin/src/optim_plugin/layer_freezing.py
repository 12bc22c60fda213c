"""Layer freezing as an algorithm of the engine: glue between State and `freezing`."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import nn

from engine_core import Algorithm, AlgorithmMetadata, Event, Logger, State
from engine_core.arguments import check_whole
from engine_core.errors import ArgumentError, ArgumentTypeError

from .freezing import (
    check_level,
    check_start,
    count_frozen,
    freeze_first,
    freezing_schedule,
    has_gradient,
    layers_behind,
    trainable_layers,
)

__all__ = ["LayerFreezing"]

_SAVED_AT = (Event.BATCH_CHECKPOINT, Event.EPOCH_CHECKPOINT)


class LayerFreezing(Algorithm):
    """Freeze layers one after another, from the front, late in training.

    Source: Brock et al. 2017, FreezeOut: Accelerate Training by Progressively Freezing Layers, arXiv 1706.04983; the
    linear schedule with these two arguments is MosaicML's layer freezing. See `freeze_layers` and `freezing_schedule`.
    Frozen layers stay frozen, in a second `fit` too. Layers count up to the last one that has had a gradient in a batch
    that ended after `start`. This is checked where a run may be saved, so that a resumed run, which starts without
    gradients, gets it from the checkpoint. When all layers but the last are frozen, it has finished.

    Args:
        start: the fraction of the whole training after which layers are frozen, in [0, 1).
        level: the fraction of layers that is frozen at its end, in (0, 1]; the last one never is.

    Example:
        >>> LayerFreezing(start=0.25, level=0.5).level
        0.5
    """

    metadata: ClassVar[AlgorithmMetadata] = AlgorithmMetadata(
        name="layer_freezing",
        description="freeze layers one after another, from the front, late in training",
        events=(Event.BATCH_START, *_SAVED_AT),
        tags=("freezing",),
        conflicts=("@freezing",),
        writes=("model",),
        needs=("freezing", "duration"),
    )

    def __init__(self, start: float = 0.5, level: float = 1.0) -> None:
        self.start, self.level = check_start(start), check_level(level)
        self._state: weakref.ref[State] | None = None
        self._layers: list[str] = []
        self._frozen = 0
        self._behind: dict[str, list[nn.Parameter]] = {}
        self._loaded: dict[str, Any] = {}

    @property
    def find_unused_parameters(self) -> bool:
        """Frozen parameters have no gradient."""
        return True

    def match(self, event: Event, state: State) -> bool:
        """If there is a layer to freeze at BATCH_START, or one to count there or before a checkpoint."""
        if event is Event.BATCH_START and (self._loaded or (self._state is not None and not self._is_of(state))):
            return True
        if event not in (Event.BATCH_START, *_SAVED_AT) or self._loaded:
            return False  # what was loaded waits for a batch
        if not self._is_of(state):
            return _done(state) > self.start
        return self._has_grown() or (event is Event.BATCH_START and self._due(_done(state)) > self._frozen)

    def validate(self, state: State) -> None:
        """Raise if the length of training is not known, or an optimizer could be left with nothing to step."""
        if state.max_duration is None:
            raise ArgumentError(
                f"max_duration is not known, so start={self.start} can't be located in the training: set max_duration"
            )
        if state.precision == "amp_fp16" and len(state.optimizers) > 1:
            raise ArgumentError(
                "layer_freezing can't work with several optimizers under amp_fp16: torch's GradScaler raises for one "
                "whose parameters are all frozen; use amp_bf16, or one optimizer with several param groups"
            )

    def apply(self, event: Event, state: State, logger: Logger | None = None) -> None:
        """Count layers, and at BATCH_START freeze those that are due."""
        model = state.model
        if model is None:
            raise ArgumentError("layer_freezing has no model to freeze layers of: give State the model")
        if self._loaded and event is Event.BATCH_START:
            self._layers, self._frozen = list(self._loaded["layers"]), int(self._loaded["frozen"])
            self._state = weakref.ref(state)
            self._look_behind(model)
        elif not self._is_of(state):
            self._forget()
        before = self._frozen
        if _done(state) > self.start:
            self._count(event, state, model)
        if event is Event.BATCH_START and self._is_of(state):
            due = max(self._frozen, self._due(_done(state)))
            freeze_first(model, due, self._layers, state.batch)
            self._frozen, self._loaded = due, {}
            if due == len(self._layers) - 1 and not self._behind:
                self.finish()
        # Only what BATCH_START freezes is told: a run that pauses may save before an evaluation that it owes.
        if logger is not None and logger.destinations and self._frozen != before:
            logger.log_metrics({"layer_freezing/frozen": self._frozen})

    def _count(self, event: Event, state: State, model: nn.Module) -> None:
        """Count the layers up to the last one with a gradient; the count never shrinks.

        A block may lack gradients for a while because it was dropped, and no layer has any in a run just resumed. If
        there are still none after a batch, because something reset them, all layers count.
        """
        if self._has_grown():
            behind = list(self._behind)
            last = max(i for i, name in enumerate(behind) if has_gradient(self._behind[name]))
            self._layers += behind[: last + 1]
            self._look_behind(model)
        elif not self._is_of(state) and (event in _SAVED_AT or has_gradient(model.parameters())):
            self._layers, self._state = trainable_layers(model), weakref.ref(state)
            self._look_behind(model)

    def _look_behind(self, model: nn.Module) -> None:
        self._behind = layers_behind(model, self._layers[-1]) if self._layers else {}

    def _has_grown(self) -> bool:
        """Does a layer after the counted ones have a gradient now?"""
        return any(map(has_gradient, self._behind.values()))

    def _forget(self) -> None:
        self._state, self._layers, self._frozen, self._behind = None, [], 0, {}

    def state_dict(self) -> dict[str, Any]:
        """Return how many layers are frozen, and the names of all counted layers."""
        if self._loaded:
            return dict(self._loaded)
        return {"frozen": self._frozen, "layers": list(self._layers)} if self._state is not None else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Freeze at the next batch what was frozen when `state` was saved.

        Raises:
            ArgumentError, ArgumentTypeError: (a ValueError, a TypeError) for a state that is not from `state_dict`;
                nothing is loaded from it.
        """
        if missing := [name for name in ("frozen", "layers") if state and name not in state]:
            raise ArgumentError(
                f"the state of layer_freezing has no {missing[0]!r}, only {', '.join(map(repr, state))}: give what its "
                "state_dict() returned"
            )
        self._loaded = _checked(state) if state else {}
        self._forget()

    def _due(self, done: float) -> int:
        return count_frozen(freezing_schedule(done, self.start, self.level), len(self._layers))

    def _is_of(self, state: State) -> bool:
        """Were the layers counted in the run of `state`?"""
        return self._state is not None and self._state() is state


def _checked(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a saved state, if it is valid."""
    layers: Any = saved["layers"]
    if not isinstance(layers, (list, tuple)) or not all(isinstance(name, str) for name in layers):
        raise ArgumentTypeError(f"layers={layers!r} in the state of layer_freezing has to be a list of layer names")
    frozen = check_whole("frozen", saved["frozen"], "[0, inf)", "the frozen layers in the state of layer_freezing")
    return {"frozen": frozen, "layers": list(layers)}


def _done(state: State) -> float:
    """Return the fraction of training that is done, 0 if its length is not known."""
    elapsed = state.get_elapsed_duration()
    return 0.0 if elapsed is None else elapsed.value
