"""The penalty on input gradients as an algorithm of the engine: glue between State and `input_gradients`."""

from __future__ import annotations

from typing import ClassVar

import torch

from engine_core import Algorithm, AlgorithmMetadata, Event, Logger, State
from engine_core.arguments import check_key, item_at
from engine_core.batch import BatchKey, ItemSwap
from engine_core.errors import EngineError

from .input_gradients import check_inputs, check_weight, input_gradient_penalty

__all__ = ["GradientPenalty"]

_PLAIN = "_without_gradient_penalty"
"""Where a loss keeps its value before the first of several instances, so that none penalizes another's penalty."""


class GradientPenalty(Algorithm):
    """Add to the loss its slope with respect to the inputs, so that small changes in them change little.

    Source: Drucker & LeCun 1992, Improving generalization performance using double backpropagation, IEEE Transactions
    on Neural Networks 3 (6). The loss gets `weight` times the squared L2 norm of the gradient of each row's loss with
    respect to the row, added up and divided by what the loss counts: rows, tokens, or nothing for a sum; see
    `input_gradient_penalty`. The penalties of microbatches, and of several ranks, add up to that of the whole batch.

    `backwards_create_graph` stays False. Only the gradient with respect to the inputs is differentiated again, and its
    graph is built here. The property asks for a graph of the last backward pass, for a third derivative that is never
    taken: it changes no number, and made a step of a small conv net on a CPU 1.6 times as long, with 5 times the
    memory.

    Args:
        weight: the factor; with 0 it never acts.
        input_key: where the model's inputs are in a batch.

    Example:
        >>> GradientPenalty(weight=10.0).weight
        10.0
    """

    metadata: ClassVar[AlgorithmMetadata] = AlgorithmMetadata(
        name="gradient_penalty",
        description="add the squared gradient of the loss with respect to its inputs to the loss",
        events=(Event.BEFORE_FORWARD, Event.AFTER_FORWARD, Event.BEFORE_BACKWARD),
        tags=("penalty",),
        within=("@augmentation",),
        writes=("batch", "loss"),
        needs=("create_graph", "whole_batch"),
    )

    def __init__(self, weight: float = 1.0, input_key: BatchKey = 0) -> None:
        self.weight = check_weight(weight)
        check_key("input_key", input_key)
        self.input_key = input_key
        self._swap = ItemSwap(input_key)
        self._inputs: torch.Tensor | None = None

    def match(self, event: Event, state: State) -> bool:
        """At all its events, unless the weight is 0."""
        return self.weight != 0 and event in self.metadata.events  # type: ignore[operator]

    def validate(self, state: State) -> None:
        """Raise if the inputs are not floats, or the range of the precision is too small."""
        if self.weight == 0:
            return
        check_inputs(item_at(state.batch, "input_key", self.input_key), f"item {self.input_key!r} of the batch")
        _check_not_compiled(state)
        if state.precision == "amp_fp16":
            raise EngineError(
                "gradient_penalty can't work with precision='amp_fp16': it differentiates the loss before the scaler "
                "scales it, so gradients in fp16 vanish; use 'amp_bf16', which has the range"
            )

    def may_rest(self, state: State) -> bool:
        """With a weight of 0."""
        return self.weight == 0

    def apply(self, event: Event, state: State, logger: Logger | None = None) -> None:
        """Give the model inputs that require a gradient, and add the penalty to its loss."""
        if event is Event.BEFORE_FORWARD:
            self._watch(state)
        elif event is Event.AFTER_FORWARD:
            self._swap.back(state)
        else:
            inputs, self._inputs = self._inputs, None
            if inputs is None:
                raise EngineError("gradient_penalty never saw BEFORE_FORWARD: the loop has to fire both events")
            plain = getattr(state.loss, _PLAIN, state.loss)
            state.loss = state.loss + self.weight * input_gradient_penalty(plain, inputs, _divisor_of_loss(state))
            setattr(state.loss, _PLAIN, plain)

    def _watch(self, state: State) -> None:
        """Put an alias of the inputs into a copy of the batch; two instances share one."""
        item = state.batch_get_item(self.input_key)
        inputs = check_inputs(item, f"item {self.input_key!r} of the batch")
        if not inputs.requires_grad:
            inputs = inputs.detach().requires_grad_()
            self._swap.put(state, inputs)
        self._inputs = inputs


def _divisor_of_loss(state: State) -> float | torch.Tensor:
    """Return what the scalar at BEFORE_BACKWARD is divided by: the same for all parts of a batch, or its count."""
    if state.loss_weight is not None:
        return state.loss_weight
    count: float | torch.Tensor | None = state.objective.count_of(state.outputs, state.batch)
    return 1 if count is None else count


def _check_not_compiled(state: State) -> None:
    """Raise for what torch.compile has wrapped: its backward pass has no second derivative."""
    modules = [] if state.model is None else [*state.model.named_modules()]
    for name, part in [*modules, ("loss_fn", state.loss_fn)]:
        in_place = getattr(part, "_compiled_call_impl", None) is not None
        if in_place or type(part).__name__ == "OptimizedModule" or hasattr(part, "_torchdynamo_orig_callable"):
            where = repr(name) if name else f"the model ({type(state.model).__name__})"
            raise EngineError(
                f"gradient_penalty can't work with what torch.compile has wrapped: {where} has no second derivative; "
                "leave it uncompiled, or leave gradient_penalty out"
            )
