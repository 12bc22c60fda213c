"""Which loss functions take the dense targets that mixing makes, and mean the mixture of two losses by it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from engine_core.batch import map_batch
from engine_core.errors import ArgumentError

__all__ = ["check_dense", "class_outputs"]

_OF_CLASSES_ALONE: dict[type[nn.Module], Any] = {
    nn.NLLLoss: F.nll_loss,
    nn.MultiMarginLoss: F.multi_margin_loss,
    nn.MultiLabelMarginLoss: F.multilabel_margin_loss,
    nn.CTCLoss: F.ctc_loss,
}
_OF_SIGNS_ALONE: dict[type[nn.Module], Any] = {nn.HingeEmbeddingLoss: F.hinge_embedding_loss}

_REMEDY = "set interpolate_loss=True, which mixes the losses and leaves the targets"


def check_dense(loss_fn: Any, target: Any) -> None:
    """Raise if this loss function can't take a mixture of such targets, or would make another number of it.

    A loss function that is not torch's, or has a `forward` of its own, is believed to take it.

    Raises:
        ArgumentError: (a ValueError) with the reason, and what to do.

    Example:
        >>> check_dense(nn.NLLLoss(), torch.tensor([1]))
        Traceback (most recent call last):
        engine_core.errors.ArgumentError: NLLLoss takes classes, ... set interpolate_loss=True, ...
    """
    if not isinstance(target, torch.Tensor):
        raise ArgumentError(f"the targets are a {type(target).__name__}, one tensor can be mixed: {_REMEDY}")
    base, settings = _unwrapped(loss_fn)
    for losses, what in ((_OF_CLASSES_ALONE, "classes"), (_OF_SIGNS_ALONE, "1 and -1")):
        if _is_one_of(base, losses):
            name = getattr(base, "__name__", type(base).__name__)
            raise ArgumentError(f"{name} takes {what}, no mixtures of them: {_REMEDY}")
    if target.is_floating_point():
        return
    if _is_one_of(base, {nn.CrossEntropyLoss: F.cross_entropy}):
        _check_cross_entropy(settings)
    if target.numel() and int(target.min()) < 0:
        raise ArgumentError(f"the targets are classes, and {int(target.min())} is none (does the loss ignore it?): "
                            f"an ignored target has no dense form, {_REMEDY}")  # fmt: skip


def _check_cross_entropy(settings: Mapping[str, Any]) -> None:
    """Raise where cross entropy treats dense targets in another way than classes."""
    if settings.get("weight") is not None:
        raise ArgumentError(
            "cross entropy divides by the classes' weights where targets are classes and by the rows where they are "
            f"dense, so that mixed targets would change the size of the loss: {_REMEDY}"
        )
    ignored = settings.get("ignore_index")
    if ignored is not None and ignored >= 0:
        raise ArgumentError(f"cross entropy takes no dense targets beside ignore_index={ignored}: {_REMEDY}")


def _unwrapped(loss_fn: Any) -> tuple[Any, Mapping[str, Any]]:
    """Return the loss within a partial or what torch.compile made, and its settings."""
    given: Mapping[str, Any] = {}
    if isinstance(loss_fn, functools.partial):  # one of a partial is itself one
        given, loss_fn = loss_fn.keywords, loss_fn.func
    if isinstance(inner := getattr(loss_fn, "_orig_mod", None), nn.Module):
        loss_fn = inner
    if isinstance(loss_fn, nn.Module):
        given = {"weight": getattr(loss_fn, "weight", None), "ignore_index": getattr(loss_fn, "ignore_index", None)}
    return loss_fn, given


def _is_one_of(loss: Any, losses: Mapping[type[nn.Module], Any]) -> bool:
    """Is this one of torch's, as function or class? A subclass with a `forward` of its own is not."""
    if any(loss is function for function in losses.values()):
        return True
    return any(isinstance(loss, kind) and type(loss).forward is kind.forward for kind in losses)


def class_outputs(outputs: Any, target: torch.Tensor) -> torch.Tensor:
    """Return the outputs (N, K, ...) for targets (N, ...) that are classes, also out of a tuple, mapping or dataclass.

    Several that fit there, as those of a net with auxiliary heads, have to agree in their shape.

    Raises:
        ArgumentError: (a ValueError) if the shapes do not say how many classes there are.
    """
    if isinstance(outputs, torch.Tensor):
        if _fits(outputs, target):
            return outputs
        raise ArgumentError(
            f"targets {tuple(target.shape)} of {target.dtype} are classes, and outputs {tuple(outputs.shape)} are not "
            f"(N, classes, ...) for them: give targets as floats, or {_REMEDY}"
        )
    found: list[torch.Tensor] = []

    def look(leaf: Any) -> None:
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and _fits(leaf, target):
            found.append(leaf)

    map_batch(outputs, look)
    if len({tensor.shape for tensor in found}) == 1:
        return found[0]
    fitting = ", ".join(str(tuple(tensor.shape)) for tensor in found) or "no tensor"
    raise ArgumentError(
        f"the outputs are a {type(outputs).__name__} and don't say how many classes: {fitting} fits the targets "
        f"{tuple(target.shape)}; let the model return the logits alone, or give targets as floats"
    )


def _fits(outputs: torch.Tensor, target: torch.Tensor) -> bool:
    return outputs.dim() > 1 and outputs.shape[:1] + outputs.shape[2:] == target.shape
