"""How targets and losses are mixed along with inputs. Independent of the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from engine_core import Loss
from engine_core.arguments import check_number
from engine_core.errors import ArgumentError, ArgumentTypeError

__all__ = ["mix_losses", "mix_targets"]


def mix_targets(
    target: torch.Tensor,
    paired_target: torch.Tensor,
    lam: float,
    num_classes: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Return `lam` of the targets and `1 - lam` of the paired targets, as dense targets.

    Args:
        target, paired_target: classes (N, ...) as integers, which become probabilities (N, num_classes, ...), or
            floats (N, ...), which are mixed as they are.
        lam: the share of `target`, in [0, 1].
        num_classes: for classes as integers.
        dtype: of the probabilities, a floating one; floats keep theirs.

    Raises:
        ArgumentTypeError: (a TypeError) if a target is not a tensor, `lam` not a number, or `dtype` not a dtype.
        ArgumentError: (a ValueError) for a `lam` out of range, targets of different shapes or dtypes, a `dtype` that
            is not floating, and classes without `num_classes` or outside of it; the last on the CPU only: another
            device would have to wait, and raises its own error.

    Example:
        >>> mix_targets(torch.tensor([0, 1]), torch.tensor([1, 1]), lam=0.75, num_classes=2)
        tensor([[0.7500, 0.2500],
                [0.0000, 1.0000]])
    """
    share = _checked_share(lam)
    _check_pair(target, paired_target)
    if target.is_floating_point():
        return torch.lerp(target, paired_target, 1 - share)
    if num_classes is None:
        raise ArgumentError(f"targets of {target.dtype} are classes: give num_classes to make them dense")
    if dtype is not torch.float32:
        _check_floating(dtype)
    shape = target.shape
    own, other = target.long().unsqueeze(1), paired_target.long().unsqueeze(1)
    dense = torch.zeros((shape[0], num_classes, *shape[1:]), dtype=dtype, device=target.device)
    try:
        dense.scatter_(1, own, share)
        return dense.scatter_add_(1, other, torch.full(other.shape, 1 - share, dtype=dtype, device=target.device))
    except (RuntimeError, IndexError):
        for classes in (target, paired_target):
            _check_classes(classes, num_classes)
        raise


def _checked_share(lam: object) -> float:
    if type(lam) is float and 0 <= lam <= 1:  # the rest of the check costs as much as mixing does
        return lam
    return check_number("lam", lam, "[0, 1]", "a row's own share")


def _check_pair(target: Any, paired_target: Any) -> None:
    """Raise unless these are two tensors of one shape and dtype."""
    for name, given in (("target", target), ("paired_target", paired_target)):
        if not isinstance(given, torch.Tensor):
            raise ArgumentTypeError(f"{name} has to be a tensor, not a {type(given).__name__}")
    if target.shape != paired_target.shape or target.dtype != paired_target.dtype:
        raise ArgumentError(
            f"targets {tuple(target.shape)} of {target.dtype} can't be mixed with {tuple(paired_target.shape)} of "
            f"{paired_target.dtype}: both have to be of one shape and dtype"
        )


def _check_floating(dtype: object) -> None:
    if not isinstance(dtype, torch.dtype):
        raise ArgumentTypeError(f"dtype={dtype!r} ({type(dtype).__name__}) has to be a torch.dtype, like torch.float32")
    if not dtype.is_floating_point:
        raise ArgumentError(f"dtype={dtype} can't hold shares of classes: give a floating one, like torch.float32")


def _check_classes(classes: torch.Tensor, number: int) -> None:
    """Raise if these are not all classes; called only if torch refused them, as checking costs more than mixing."""
    if classes.device.type != "cpu" or not classes.numel():
        return
    low, high = int(classes.min()), int(classes.max())
    if low < 0 or high >= number:
        raise ArgumentError(
            f"targets from {low} to {high} are not all among the {number} classes; targets that the loss "
            "ignores have no dense form: interpolate the losses instead of the targets"
        )


def mix_losses(loss: Any, paired_loss: Any, lam: float) -> Any:
    """Return `lam` of a loss and `1 - lam` of the paired targets' loss; tuples, lists, dicts and a `Loss` part by part.

    Raises:
        ArgumentTypeError: (a TypeError) if `lam` is not a number.
        ArgumentError: (a ValueError) if the two have different parts, or `lam` is out of range.

    Example:
        >>> mix_losses({"a": 1.0, "b": 2.0}, {"a": 3.0, "b": 2.0}, lam=0.75)
        {'a': 1.5, 'b': 2.0}
    """
    return _mixed(loss, paired_loss, _checked_share(lam))


def _mixed(loss: Any, paired: Any, share: float) -> Any:
    if isinstance(loss, Loss) and isinstance(paired, Loss):
        # Of the same rows in another order; a sum of class weights may differ in its last bit.
        return share * loss + (1 - share) * replace(paired, count=loss.count)
    if isinstance(loss, Mapping):
        if not isinstance(paired, Mapping) or loss.keys() != paired.keys():
            raise ArgumentError(f"the loss has parts {list(loss)}, but for the paired targets {_parts(paired)}")
        return {name: _mixed(part, paired[name], share) for name, part in loss.items()}
    if isinstance(loss, (tuple, list)):
        if not isinstance(paired, (tuple, list)) or len(loss) != len(paired):
            raise ArgumentError(f"the loss has {len(loss)} parts, but for the paired targets {_parts(paired)}")
        parts = [_mixed(*both, share) for both in zip(loss, paired, strict=True)]
        return type(loss)(*parts) if hasattr(loss, "_fields") else type(loss)(parts)
    return share * loss + (1 - share) * paired


def _parts(loss: Any) -> str:
    if isinstance(loss, Mapping):
        return str(list(loss))
    return str(len(loss)) if isinstance(loss, (tuple, list)) else f"none: a {type(loss).__name__}"
