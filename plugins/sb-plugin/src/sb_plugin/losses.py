"""The loss of each row instead of the loss of the batch. Independent of the model."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import nn

from engine_core.batch import map_batch
from engine_core.errors import ArgumentError, ArgumentTypeError

__all__ = ["Loss", "check_losses", "in_fp32", "per_sample", "to_fp32"]

Loss: TypeAlias = Callable[[Any, Any], Any]
"""Takes outputs and targets, or outputs and the whole batch."""


def per_sample(loss: object) -> Loss:
    """Return `loss` without its reduction; a loss module does not change: a copy, not compiled, is evaluated.

    Raises:
        TypeError: if `loss` can't be called or takes no `reduction`.

    Example:
        >>> per_sample(nn.L1Loss())(torch.tensor([1.0, 2.0]), torch.zeros(2))
        tensor([1., 2.])
    """
    if not callable(loss):
        raise ArgumentTypeError(f"the loss {loss!r} can't be called: give one like torch.nn.functional.cross_entropy")
    while isinstance(loss, nn.Module) and isinstance(inner := getattr(loss, "_orig_mod", None), nn.Module):
        loss = inner  # what `torch.compile` wraps; the wrapper takes any argument and passes it on
    if isinstance(loss, nn.Module) and isinstance(getattr(loss, "reduction", None), str):
        return partial(_unreduced, loss)
    if _takes_reduction(loss):
        return partial(loss, reduction="none")
    name = getattr(loss, "__qualname__", type(loss).__name__)
    raise ArgumentTypeError(
        f"the loss {name} takes no `reduction`, so it gives no loss per sample: let it take reduction='mean' and "
        "return a tensor of shape (n,) for 'none'"
    )


def _takes_reduction(loss: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss).parameters
    except ValueError:  # a builtin without a signature
        return False
    return "reduction" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _unreduced(loss: nn.Module, outputs: Any, targets: Any) -> Any:
    twin = copy.copy(loss)  # shares weights and hooks, and follows what is set on the original later
    twin.reduction = "none"  # type: ignore[assignment]
    return twin(outputs, targets)


def in_fp32(loss: Loss, outputs: Any, targets: Any) -> Any:
    """Evaluate `loss` in single precision, even if autocast made the outputs."""
    tensor = _first_tensor(outputs)
    if tensor is None or not torch.is_autocast_enabled(tensor.device.type):
        return loss(outputs, targets)
    with torch.autocast(tensor.device.type, enabled=False):
        return loss(map_batch(outputs, to_fp32), targets)


def to_fp32(leaf: Any) -> Any:
    """Return a half-precision tensor in single precision, anything else unchanged."""
    if isinstance(leaf, torch.Tensor) and leaf.dtype in (torch.bfloat16, torch.float16):
        return leaf.float()
    return leaf


def _first_tensor(outputs: Any) -> torch.Tensor | None:
    if isinstance(outputs, torch.Tensor):
        return outputs
    tensors: list[torch.Tensor] = []
    map_batch(outputs, lambda leaf: tensors.append(leaf) if isinstance(leaf, torch.Tensor) else None)
    return tensors[0] if tensors else None


def check_losses(losses: Any, n: int) -> torch.Tensor:
    """Return the losses as scores (n,) in single precision.

    A dict's `total` wins; otherwise the parts of a dict or tuple are summed, as in the Trainer.

    Raises:
        ValueError: if there is not exactly one loss for each of the `n` rows.
    """
    if isinstance(losses, Mapping):
        losses = losses["total"] if "total" in losses else sum(losses.values())
    elif isinstance(losses, (tuple, list)):
        losses = sum(losses)
    if not isinstance(losses, torch.Tensor):
        raise ArgumentTypeError(f"the loss with reduction='none' gave {losses!r}, not a tensor of shape ({n},)")
    if losses.shape != (n,):
        raise ArgumentError(
            f"the loss with reduction='none' has shape {tuple(losses.shape)}, not ({n},), one value per row: "
            + _remedy(losses, n)
        )
    return losses.float()


def _remedy(losses: torch.Tensor, n: int) -> str:
    if losses.dim() == 0:
        return "it has to respect reduction='none'"
    if losses.shape[0] == n:
        return "take the mean over the rest, as losses.flatten(1).mean(1) does"
    return "reduce it to the rows, as losses.view(n, -1).mean(1) does"
