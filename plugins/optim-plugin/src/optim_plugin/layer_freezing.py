"""Layer freezing as an algorithm of the engine: glue between State and the functions that freeze."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, ClassVar

from engine_core import Algorithm, AlgorithmMetadata, Event, Logger, State
from engine_core.errors import ArgumentError

from .freezing import check_level, check_start, count_frozen, freeze_first, freezing_schedule, trainable_layers

__all__ = ["LayerFreezing"]


class LayerFreezing(Algorithm):
    """Freeze layer after layer, from the front, late in training.

    Source: Brock et al. 2017, FreezeOut: Accelerate Training by Progressively Freezing Layers, arXiv 1706.04983; the
    linear schedule with these two arguments is MosaicML's layer freezing. See `freeze_layers` and `freezing_schedule`.
    Frozen layers stay frozen, in a second `fit` too.

    Args:
        start: the fraction of the whole training after which layers are frozen, in [0, 1).
        level: the fraction of the layers that is frozen at its end, in (0, 1]; the last one never is.

    Example:
        >>> LayerFreezing(start=0.25, level=0.5).level
        0.5
    """

    metadata: ClassVar[AlgorithmMetadata] = AlgorithmMetadata(
        name="layer_freezing",
        description="freeze layer after layer, from the front, late in training",
        events=(Event.BATCH_START,),
        tags=("freezing",),
        writes=("model",),
    )

    def __init__(self, start: float = 0.5, level: float = 1.0) -> None:
        self.start, self.level = check_start(start), check_level(level)
        self._state: weakref.ref[State] | None = None
        self._layers: list[str] = []
        self._frozen = 0
        self._loaded: dict[str, Any] = {}

    @property
    def find_unused_parameters(self) -> bool:
        """Frozen parameters go without a gradient."""
        return True

    def match(self, event: Event, state: State) -> bool:
        """BATCH_START, when there is a layer to freeze now, or the layers of this run are not counted yet."""
        if event is not Event.BATCH_START:
            return False
        if self._loaded or (self._state is not None and not self._is_of(state)):
            return True
        elapsed = state.get_elapsed_duration()
        if elapsed is None or elapsed.value <= self.start:
            return False
        return not self._is_of(state) or self._due(elapsed.value) > self._frozen

    def validate(self, state: State) -> None:
        """Raise if the length of the training is not known, or an optimizer could be left with nothing to step."""
        if state.max_duration is None:
            raise ArgumentError(
                f"max_duration is not known, so start={self.start} has no place in the training: set max_duration"
            )
        if state.precision == "amp_fp16" and len(state.optimizers) > 1:
            raise ArgumentError(
                "layer_freezing can't work with several optimizers under amp_fp16: torch's GradScaler raises for one "
                "whose parameters are all frozen; use amp_bf16, or one optimizer with several param groups"
            )

    def apply(self, event: Event, state: State, logger: Logger) -> None:
        """Freeze what is to be frozen by now."""
        model, elapsed = state.model, state.get_elapsed_duration()
        if model is None:
            raise ArgumentError("layer_freezing has no model whose layers it could freeze: give State the model")
        assert elapsed is not None
        before = self._frozen if self._is_of(state) else 0
        if self._loaded:
            self._layers, before = list(self._loaded["layers"]), int(self._loaded["frozen"])
        elif not self._is_of(state):
            self._state, self._layers, self._frozen = None, [], 0
            if elapsed.value <= self.start:
                return
            self._layers = trainable_layers(model)
        self._frozen = max(before, self._due(elapsed.value))
        freeze_first(model, self._frozen, self._layers)
        self._state, self._loaded = weakref.ref(state), {}
        if logger.destinations:
            logger.log_metrics({"layer_freezing/frozen": self._frozen})

    def state_dict(self) -> dict[str, Any]:
        """Return how many layers are frozen, and the names of all that were counted."""
        if self._loaded:
            return dict(self._loaded)
        return {"frozen": self._frozen, "layers": list(self._layers)} if self._state is not None else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Freeze at the next batch what was frozen when `state` was saved.

        Raises:
            ArgumentError: (a ValueError) for a state that `state_dict` can't have made; nothing is taken from it.
        """
        if missing := [name for name in ("frozen", "layers") if state and name not in state]:
            raise ArgumentError(
                f"the state of layer_freezing has no {missing[0]!r}, only {', '.join(map(repr, state))}: give what its "
                "state_dict() returned"
            )
        self._loaded = {"frozen": int(state["frozen"]), "layers": list(state["layers"])} if state else {}
        self._state, self._layers, self._frozen = None, [], 0

    def _due(self, done: float) -> int:
        return count_frozen(freezing_schedule(done, self.start, self.level), len(self._layers))

    def _is_of(self, state: State) -> bool:
        """Were the layers counted in the run of `state`?"""
        return self._state is not None and self._state() is state
