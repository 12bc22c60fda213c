"""Sharpness-Aware Minimization as an algorithm of the engine: glue between State and `sharpness`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from torch import nn

from engine_core import Algorithm, AlgorithmMetadata, Event, Logger, State
from engine_core.arguments import check_number, check_whole
from engine_core.errors import ArgumentError, EngineError

from .gradients import trained_parameters
from .sharpness import RHO, check_rho, held_buffers, sharpness_aware_gradients

__all__ = ["SAM"]


class SAM(Algorithm):
    """Step with the gradients at the weights `rho` up the slope, so that training ends in flat minima.

    Source: Foret et al. 2020, Sharpness-Aware Minimization for Efficiently Improving Generalization, arXiv 2010.01412.
    At AFTER_TRAIN_BATCH the weights move, the batch runs forward and backward once more, and the weights are restored
    bit for bit, see `sharpness_aware_gradients`; the optimizers then step with the new gradients. `state.loss`,
    `state.outputs` and the model's buffers stay those of the first pass. The pass `sort_sam_first` puts SAM before all
    others there, which end the batch or edit its gradients.

    Args:
        rho: how far the weights are moved, as an L2 norm over all parameters of the optimizers.
        interval: replace the gradients in every `interval`-th step; the others are ordinary ones.
        start: the fraction of the whole training from which on it does so, in [0, 1): late in training is enough for
            flat minima (Zhou et al. 2024, Sharpness-Aware Minimization Efficiently Selects Flatter Minima Late in
            Training, arXiv 2410.10373).

    Example:
        >>> SAM(rho=0.1, interval=2).interval
        2
    """

    metadata: ClassVar[AlgorithmMetadata] = AlgorithmMetadata(
        name="sam",
        description="step with the gradients at weights a little up the slope",
        events=(Event.AFTER_TRAIN_BATCH,),
        tags=("gradients", "sharpness"),
        conflicts=("@sharpness",),
        writes=("model",),
        needs=("whole_weights", "closure"),
    )

    def __init__(self, rho: float = RHO, interval: int = 1, *, start: float = 0.0) -> None:
        self.rho = check_rho(rho)
        self.interval = check_whole("interval", interval, "[1, inf)", "the steps from one replacement to the next")
        self.start = check_number("start", start, "[0, 1)", "the fraction of training without sharpness-aware steps")
        if self.start:
            own = self.metadata.replace(needs=("duration", *self.metadata.needs))
            self.metadata = own  # type: ignore[misc]  # this instance's own

    def match(self, event: Event, state: State) -> bool:
        """The last of each `interval` steps, from `start` on."""
        if event is not Event.AFTER_TRAIN_BATCH or (state.timestamp.batch + 1) % self.interval:
            return False
        elapsed = state.get_elapsed_duration() if self.start else None
        return not self.start or (elapsed is not None and elapsed.value >= self.start)

    def validate(self, state: State) -> None:
        """Raise if the loop has no closure, a scaler allows only one pass a step, or a gradient would be sparse.

        With a `start`, also if the length of training is not known.
        """
        if self.start and state.max_duration is None:
            raise ArgumentError(
                f"max_duration is not known, so start={self.start} can't be located in the training: set max_duration"
            )
        _closure_of(state)
        _check_embeddings(state.model)

    def may_rest(self, state: State) -> bool:
        """If no interval ended between `start` and the end."""
        batches = state.timestamp.batch
        last = batches - batches % self.interval - 1
        return last < 0 or last / batches < self.start

    def apply(self, event: Event, state: State, logger: Logger | None = None) -> None:
        """Replace the gradients."""
        closure = _closure_of(state)
        outputs, loss = state.outputs, state.loss
        try:
            with held_buffers(state.model):
                sharpness_aware_gradients(trained_parameters(state), closure, self.rho)
        finally:
            state.outputs, state.loss = outputs, loss


def _closure_of(state: State) -> Callable[[], Any]:
    if state.precision == "amp_fp16":
        raise EngineError(
            "sam can't work with precision='amp_fp16': its scaler unscales the gradients once a step, but sam needs "
            "them twice; 'amp_bf16' needs no scaler"
        )
    if state.loop.closure is None:
        raise EngineError(
            "sam needs state.loop.closure, which this loop does not offer: set it to a function that resets gradients, "
            "runs forward, loss and backward on state.batch again, with the events in between, and returns the loss"
        )
    return state.loop.closure


def _check_embeddings(model: nn.Module | None) -> None:
    for name, module in () if model is None else model.named_modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse and module.weight.requires_grad:
            raise ArgumentError(
                f"sam can't train {name!r}, whose gradient is sparse: weights can't be moved along it and restored; "
                "make the embedding with sparse=False"
            )
