"""Label smoothing as an algorithm of the engine: glue between State and the functions of this package."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

from engine_core import Algorithm, AlgorithmMetadata, Event, Logger, State
from engine_core.arguments import check_key, check_taken, item_at
from engine_core.batch import BatchKey, ItemSwap
from engine_core.errors import ArgumentError, ArgumentTypeError
from engine_core.losses import class_outputs, loss_setting
from engine_core.objective import check_seen, targets_taken

from .smoothing import check_smoothing, holds_one_hot, smooth_labels

__all__ = ["LabelSmoothing"]


class LabelSmoothing(Algorithm):
    """Train on targets between the labels and the uniform distribution.

    Source: Szegedy et al. 2015, Rethinking the Inception Architecture, arXiv 1512.00567, section 7. While the loss is
    computed, targets are dense, `(1 - smoothing) * one_hot + smoothing / K`; see `smooth_labels`. With torch's cross
    entropy the loss equals that of its own `label_smoothing`. Evaluation is not affected.

    Args:
        smoothing: the share of the uniform distribution, in [0, 1); with 0 it never acts.
        target_key: where the targets are in a batch. A loss function of the Trainer is given item 1.

    Example:
        >>> LabelSmoothing(0.2).smoothing
        0.2
    """

    metadata: ClassVar[AlgorithmMetadata] = AlgorithmMetadata(
        name="label_smoothing",
        description="train on targets between the labels and the uniform distribution",
        events=(Event.BEFORE_LOSS, Event.AFTER_LOSS),
        tags=("target_smoothing",),
        around=("@target_mixing",),
        conflicts=("@target_smoothing",),
        writes=("batch",),
    )

    def __init__(self, smoothing: float = 0.1, target_key: BatchKey = 1) -> None:
        self.smoothing = check_smoothing(smoothing)
        check_key("target_key", target_key)
        self.target_key = target_key
        self._target = ItemSwap(target_key)

    def match(self, event: Event, state: State) -> bool:
        """BEFORE_LOSS, and AFTER_LOSS if there are labels to restore."""
        if event is Event.BEFORE_LOSS:
            return self.smoothing > 0
        return event is Event.AFTER_LOSS and self._target.is_in

    def validate(self, state: State) -> None:
        """Raise if the loss can't take smoothed targets, or the targets are neither classes nor probabilities."""
        if not self.smoothing:
            return
        target = item_at(state.batch, "target_key", self.target_key)
        if not isinstance(target, torch.Tensor):
            raise ArgumentTypeError(
                f"label_smoothing found a {type(target).__name__} under target_key={self.target_key!r}, "
                "but smooths tensors: class indices (N, ...), probabilities or one-hot integers (N, K, ...)"
            )
        _check_loss(state)
        if "loss_fn" in state.loop.offers.writes:  # else a step of the user calls it
            check_taken(state, "target_key", self.target_key, "targets")
        if target.is_floating_point():
            _check_probabilities(target)
        elif not _is_cross_entropy(state.loss_fn):
            _check_none_ignored(target)

    def may_rest(self, state: State) -> bool:
        """With nothing to smooth."""
        return self.smoothing == 0

    def apply(self, event: Event, state: State, logger: Logger | None = None) -> None:
        """Put dense targets into the batch, and the labels back once the loss is computed."""
        if event is Event.AFTER_LOSS:
            self._target.back(state)
            check_seen(state, "label_smoothing", counts=not state.timestamp.batch)
            return
        target = state.batch_get_item(self.target_key)
        settings: dict[str, Any] = {}
        if _is_cross_entropy(state.loss_fn):
            settings = {name: loss_setting(state.loss_fn, name) for name in ("ignore_index", "weight", "reduction")}
        else:
            _check_none_ignored(target)
        outputs = _outputs(state.outputs, target)
        if settings.get("weight") is not None and holds_one_hot(outputs, target):
            raise ArgumentError(
                f"label_smoothing found one-hot integers {tuple(target.shape)} with class weights, by which "
                "microbatches are weighted: give class indices, y.argmax(1)"
            )
        given = {name: value for name, value in settings.items() if value is not None}
        self._target.put(state, smooth_labels(outputs, target, self.smoothing, **given))


def _is_cross_entropy(loss_fn: Any) -> bool:
    """Is it known what the loss ignores, and what it divides by?"""
    return targets_taken(loss_fn) == targets_taken(nn.functional.cross_entropy)


def _check_loss(state: State) -> None:
    """Raise if a loss is known not to take smoothed targets, or to smooth them itself.

    A subclass of torch's with its own `forward` is assumed to take them.
    """
    loss_fn, name = state.loss_fn, state.objective.name_of_loss(state.model)
    taken = targets_taken(loss_fn)
    if taken is not None and not _is_cross_entropy(loss_fn):
        raise ArgumentError(
            f"label_smoothing makes targets shares of several classes, but {name} takes only {taken}: use "
            "torch.nn.CrossEntropyLoss, on logits, or smooth 0 and 1 in the data, y * (1 - s) + s / 2"
        )
    if own := loss_setting(loss_fn, "label_smoothing") if taken else None:
        raise ArgumentError(
            f"{name} has its own label_smoothing={own}, so targets would be smoothed twice: remove it from the loss, "
            "or leave the algorithm label_smoothing out"
        )
    if (ignored := loss_setting(loss_fn, "ignore_index") if taken else None) is not None and ignored >= 0:
        raise ArgumentError(
            f"{name} has ignore_index={ignored}, but torch takes dense targets only with a negative one: give ignored "
            f"targets such a number in the data, like -100, or let the loss smooth, "
            f"{name}(ignore_index={ignored}, label_smoothing=...), without the algorithm"
        )


def _outputs(outputs: Any, target: torch.Tensor) -> torch.Tensor:
    """Return the outputs that fit the target as indices or probabilities, else as one-hot integers."""
    try:
        return class_outputs(outputs, target)
    except ArgumentError:
        if target.is_floating_point() or target.dim() < 2:
            raise
        return class_outputs(outputs, torch.empty(target.shape, device="meta"))


def _check_none_ignored(target: torch.Tensor) -> None:
    """Raise for targets that the loss may ignore, where it is not known what the loss divides by."""
    if not target.is_floating_point() and bool((target < 0).any()):
        raise ArgumentError(
            f"label_smoothing found the target {int(target.min())}. Which targets a loss ignores, and what it divides "
            "by, is known only for torch's cross_entropy: give Trainer(loss_fn=torch.nn.CrossEntropyLoss()), or smooth "
            "in the loss itself with cross_entropy(..., label_smoothing=...) instead of this algorithm"
        )


def _check_probabilities(target: torch.Tensor) -> None:
    """Raise unless the target is probabilities (N, K, ...), K at least 2; bfloat16 rounds them by a hundredth."""
    shape = tuple(target.shape)
    if target.dim() < 2 or shape[1] < 2:
        raise ArgumentError(
            f"label_smoothing found float targets {shape}, which are not classes: it takes class indices (N, ...) "
            "or probabilities (N, K, ...) of 2 or more; smooth binary targets in the data, y * (1 - s) + s / 2"
        )
    sums = target.sum(1, dtype=torch.float32)
    if bool((target < 0).any()) or not torch.allclose(sums, torch.ones_like(sums), atol=0.02):
        raise ArgumentError(
            f"label_smoothing found float targets {shape} that are not probabilities along dimension 1 (negative, "
            "or their sum is not 1): smoothing would change their scale; it takes probabilities or indices"
        )
