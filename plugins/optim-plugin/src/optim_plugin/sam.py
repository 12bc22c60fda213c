"""Sharpness-Aware Minimization as an algorithm of the engine: glue between State and `sharpness`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from torch import nn

from engine_core import Algorithm, AlgorithmMetadata, Event, Logger, State
from engine_core.arguments import check_whole
from engine_core.errors import ArgumentError, EngineError

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

    def __init__(self, rho: float = RHO, interval: int = 1) -> None:
        self.rho = check_rho(rho)
        self.interval = check_whole("interval", interval, "[1, inf)", "the steps from one replacement to the next")

    def match(self, event: Event, state: State) -> bool:
        """The last of each `interval` steps."""
        return event is Event.AFTER_TRAIN_BATCH and (state.timestamp.batch + 1) % self.interval == 0

    def validate(self, state: State) -> None:
        """Raise if the loop has no closure, a scaler allows only one pass a step, or a gradient would be sparse."""
        _closure_of(state)
        _check_embeddings(state.model)

    def may_rest(self, state: State) -> bool:
        """If training was shorter than the interval."""
        return state.timestamp.batch < self.interval

    def apply(self, event: Event, state: State, logger: Logger | None = None) -> None:
        """Replace the gradients."""
        closure = _closure_of(state)
        outputs, loss = state.outputs, state.loss
        try:
            with held_buffers(state.model):
                sharpness_aware_gradients(_trained(state), closure, self.rho)
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


def _trained(state: State) -> Iterator[nn.Parameter]:
    """Yield the parameters of the optimizers, or of the model if there are none.

    Nothing resets the gradients of others: they would add up from step to step, and the norm with them.
    """
    if not state.optimizers:
        yield from () if state.model is None else state.model.parameters()
    for optimizer in state.optimizers:
        for group in optimizer.param_groups:
            yield from group["params"]
