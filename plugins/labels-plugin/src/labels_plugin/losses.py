"""What is known about a loss function: whether it takes dense targets, and what it divides by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from engine_core.errors import ArgumentError
from engine_core.losses import base_loss, is_torch_loss, loss_setting

__all__ = ["CrossEntropy", "check_loss", "cross_entropy_of"]

_CROSS_ENTROPY: dict[type[nn.Module], Any] = {nn.CrossEntropyLoss: F.cross_entropy}
_INDEX_ONLY: dict[type[nn.Module], Any] = {
    nn.NLLLoss: F.nll_loss,
    nn.MultiMarginLoss: F.multi_margin_loss,
    nn.MultiLabelMarginLoss: F.multilabel_margin_loss,
    nn.CTCLoss: F.ctc_loss,
}
_SIGNS_ONLY: dict[type[nn.Module], Any] = {nn.HingeEmbeddingLoss: F.hinge_embedding_loss}
_EACH_OUTPUT: dict[type[nn.Module], Any] = {
    nn.BCELoss: F.binary_cross_entropy,
    nn.BCEWithLogitsLoss: F.binary_cross_entropy_with_logits,
    nn.MultiLabelSoftMarginLoss: F.multilabel_soft_margin_loss,
    nn.SoftMarginLoss: F.soft_margin_loss,
}


@dataclass(frozen=True)
class CrossEntropy:
    """The settings of torch's cross entropy that decide what the sum over the rows is divided by."""

    ignore_index: int = -100
    weight: torch.Tensor | None = None
    reduction: str = "mean"
    label_smoothing: float = 0.0


def cross_entropy_of(loss: object) -> CrossEntropy | None:
    """Return the settings of a loss that is torch's cross entropy, as class, function or partial; None for others.

    Example:
        >>> cross_entropy_of(nn.CrossEntropyLoss(reduction="sum"))
        CrossEntropy(ignore_index=-100, weight=None, reduction='sum', label_smoothing=0.0)
        >>> cross_entropy_of(F.mse_loss)
    """
    if not is_torch_loss(loss, _CROSS_ENTROPY):
        return None
    given = {name: loss_setting(loss, name) for name in CrossEntropy.__dataclass_fields__}
    return CrossEntropy(**{name: value for name, value in given.items() if value is not None})


def check_loss(loss: object) -> None:
    """Raise if a loss is known not to take smoothed targets, or to smooth them itself.

    A subclass of torch's with its own `forward` is assumed to take them.

    Raises:
        ArgumentError: (a ValueError) with what to do instead.
    """
    base = base_loss(loss)
    name = getattr(base, "__name__", type(base).__name__)
    for losses, what in ((_INDEX_ONLY, "indices"), (_SIGNS_ONLY, "1 and -1")):
        if is_torch_loss(base, losses):
            raise ArgumentError(
                f"label_smoothing makes the targets dense, but {name} takes only {what}: "
                "use torch.nn.CrossEntropyLoss, on logits, or leave label_smoothing out"
            )
    if is_torch_loss(base, _EACH_OUTPUT):
        raise ArgumentError(
            f"label_smoothing is for one class out of several, but {name} scores each output by itself: "
            "smooth its targets in the data, y * (1 - s) + s / 2, or leave label_smoothing out"
        )
    settings = cross_entropy_of(loss)
    if settings is not None:
        _check_cross_entropy(settings, name)


def _check_cross_entropy(settings: CrossEntropy, name: str) -> None:
    if settings.label_smoothing:
        raise ArgumentError(
            f"{name} has its own label_smoothing={settings.label_smoothing}, so targets would be smoothed twice: "
            "remove it from the loss, or leave the algorithm label_smoothing out"
        )
    if settings.ignore_index >= 0:
        raise ArgumentError(
            f"{name} has ignore_index={settings.ignore_index}, but torch takes dense targets only with a negative one: "
            f"give ignored targets such a number in the data, like -100, or let the loss smooth: "
            f"{name}(ignore_index={settings.ignore_index}, label_smoothing=...) without the algorithm"
        )
