"""Which loss functions take the dense targets of mixing, and compute the mixture of two losses from them."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from engine_core.errors import ArgumentError
from engine_core.losses import loss_setting
from engine_core.objective import targets_taken

__all__ = ["check_classes", "check_dense"]

_REMEDY = "set interpolate_loss=True, which mixes the losses and leaves the targets"


def check_dense(loss_fn: Any, name: str, target: Any) -> None:
    """Raise if this loss function can't take mixtures of these targets, or would compute a different loss.

    A loss function that is not torch's, or has its own `forward`, is assumed to take them.

    Args:
        name: of the loss function.

    Raises:
        ArgumentError: (a ValueError) with the reason, and what to do.

    Example:
        >>> check_dense(F.nll_loss, "nll_loss", torch.tensor([1]))
        Traceback (most recent call last):
        engine_core.errors.ArgumentError: nll_loss takes classes, ... set interpolate_loss=True, ...
    """
    if not isinstance(target, torch.Tensor):
        raise ArgumentError(f"the targets are a {type(target).__name__}, only a tensor can be mixed: {_REMEDY}")
    if (taken := targets_taken(loss_fn)) in ("classes", "1 and -1"):
        raise ArgumentError(f"{name} takes {taken}, not mixtures of them: {_REMEDY}")
    if target.is_floating_point():
        return
    if taken == targets_taken(F.cross_entropy):
        if loss_setting(loss_fn, "weight") is not None:
            raise ArgumentError(
                "cross entropy divides by the class weights if targets are classes but by the rows if they are dense, "
                f"so mixed targets would change the size of the loss: {_REMEDY}"
            )
        ignored = loss_setting(loss_fn, "ignore_index")
        if ignored is not None and ignored >= 0:
            raise ArgumentError(f"cross entropy with ignore_index={ignored} takes no dense targets: {_REMEDY}")
    if target.numel() and int(target.min()) < 0:
        raise ArgumentError(f"the targets are classes, but {int(target.min())} isn't one (does the loss ignore it?): "
                            f"an ignored target has no dense form, {_REMEDY}")  # fmt: skip


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
