"""Which loss functions take the dense targets of mixing, and compute the mixture of two losses from them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from engine_core.errors import ArgumentError
from engine_core.losses import base_loss, is_torch_loss, loss_setting

__all__ = ["check_classes", "check_dense"]

_CLASSES_ONLY: dict[type[nn.Module], Any] = {
    nn.NLLLoss: F.nll_loss,
    nn.MultiMarginLoss: F.multi_margin_loss,
    nn.MultiLabelMarginLoss: F.multilabel_margin_loss,
    nn.CTCLoss: F.ctc_loss,
}
_SIGNS_ONLY: dict[type[nn.Module], Any] = {nn.HingeEmbeddingLoss: F.hinge_embedding_loss}

_REMEDY = "set interpolate_loss=True, which mixes the losses and leaves the targets"


def check_dense(loss_fn: Any, target: Any) -> None:
    """Raise if this loss function can't take mixtures of these targets, or would compute a different loss.

    A loss function that is not torch's, or has its own `forward`, is assumed to take them.

    Raises:
        ArgumentError: (a ValueError) with the reason, and what to do.

    Example:
        >>> check_dense(nn.NLLLoss(), torch.tensor([1]))
        Traceback (most recent call last):
        engine_core.errors.ArgumentError: NLLLoss takes classes, ... set interpolate_loss=True, ...
    """
    if not isinstance(target, torch.Tensor):
        raise ArgumentError(f"the targets are a {type(target).__name__}, only a tensor can be mixed: {_REMEDY}")
    for losses, what in ((_CLASSES_ONLY, "classes"), (_SIGNS_ONLY, "1 and -1")):
        if is_torch_loss(loss_fn, losses):
            base = base_loss(loss_fn)
            name = getattr(base, "__name__", type(base).__name__)
            raise ArgumentError(f"{name} takes {what}, not mixtures of them: {_REMEDY}")
    if target.is_floating_point():
        return
    if is_torch_loss(loss_fn, {nn.CrossEntropyLoss: F.cross_entropy}):
        _check_cross_entropy(loss_fn)
    if target.numel() and int(target.min()) < 0:
        raise ArgumentError(f"the targets are classes, but {int(target.min())} isn't one (does the loss ignore it?): "
                            f"an ignored target has no dense form, {_REMEDY}")  # fmt: skip


def _check_cross_entropy(loss_fn: Any) -> None:
    """Raise if cross entropy treats dense targets differently from classes."""
    if loss_setting(loss_fn, "weight") is not None:
        raise ArgumentError(
            "cross entropy divides by the class weights if targets are classes but by the rows if they are dense, "
            f"so mixed targets would change the size of the loss: {_REMEDY}"
        )
    ignored = loss_setting(loss_fn, "ignore_index")
    if ignored is not None and ignored >= 0:
        raise ArgumentError(f"cross entropy with ignore_index={ignored} takes no dense targets: {_REMEDY}")


def check_classes(outputs: torch.Tensor, target: torch.Tensor) -> None:
    """Raise unless outputs are (N, K, ...) for targets (N, ...) that are classes.

    Raises:
        ArgumentError: (a ValueError) with the shapes.
    """
    if outputs.dim() < 2 or outputs.shape[:1] + outputs.shape[2:] != target.shape:
        raise ArgumentError(
            f"targets {tuple(target.shape)} of {target.dtype} are classes, but outputs {tuple(outputs.shape)} are not "
            f"(N, classes, ...): give targets as floats, or {_REMEDY}"
        )
