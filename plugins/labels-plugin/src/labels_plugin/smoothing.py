"""Smoothed targets, from tensors alone: no batch, no loss function, no engine."""

from __future__ import annotations

import torch

from engine_core.arguments import check_number
from engine_core.errors import ArgumentError, ArgumentTypeError

__all__ = ["check_smoothing", "holds_one_hot", "smooth_labels"]


REDUCTIONS = ("mean", "sum", "none")


def check_smoothing(smoothing: object) -> float:
    """Return the share of the uniform distribution, if it is in [0, 1)."""
    return check_number("smoothing", smoothing, "[0, 1)", "the share of the uniform distribution, such as 0.1")


def smooth_labels(
    outputs: torch.Tensor,
    target: torch.Tensor,
    smoothing: float = 0.1,
    *,
    ignore_index: int = -100,
    weight: torch.Tensor | None = None,
    reduction: str = "mean",
) -> torch.Tensor:
    """Return dense targets `(1 - smoothing) * one_hot + smoothing / K`, of the outputs' shape.

    Source: Szegedy et al. 2015, Rethinking the Inception Architecture, arXiv 1512.00567, section 7. The loss
    `F.cross_entropy(outputs, smooth_labels(outputs, target, s))` is `F.cross_entropy(outputs, target,
    label_smoothing=s)`. For dense targets torch divides by all rows, for indices by those not ignored, each with the
    weight of its class: with ignored rows or weights and `reduction="mean"` the rows are scaled to make up for
    that, and do not sum to 1. Ignored rows are zero. If all are ignored, the loss is 0 instead of torch's NaN.

    Args:
        outputs: logits (N, K, ...); they give the number of classes and the precision, at least float32.
        target: class indices (N, ...), or probabilities (N, K, ...), none of which are ignored, or one-hot integers
            (N, K, ...), which count as the indices.
        smoothing: the share of the uniform distribution, in [0, 1); with 0 `target` itself is returned.
        ignore_index, weight, reduction: as in the loss; `weight` has one number for each class.

    Raises:
        ArgumentError: (a ValueError) if the shapes do not fit, there is only one class, `reduction` is unknown, or a
            label is not one of the classes; the last on the CPU only, another device raises its own error.
        ArgumentTypeError: (a TypeError) if an argument is not a tensor, or not a number.

    Example:
        >>> smooth_labels(torch.zeros(2, 4), torch.tensor([0, 3]), 0.2)
        tensor([[0.8500, 0.0500, 0.0500, 0.0500],
                [0.0500, 0.0500, 0.0500, 0.8500]])
    """
    share = smoothing
    if type(share) is not float or not 0 <= share < 1:  # the rest of the check costs more than the formula
        share = check_smoothing(smoothing)
    _check_pair(outputs, target)
    if reduction not in REDUCTIONS:
        raise ArgumentError(f"reduction={reduction!r} has to be one of {', '.join(map(repr, REDUCTIONS))}")
    if weight is not None:
        _check_weight(weight, outputs.shape[1])
    if not share:
        return target
    classes = outputs.shape[1]
    if holds_one_hot(outputs, target):
        target = _indices(outputs, target)
    if target.is_floating_point():
        return target.to(_dtype_for(target)).mul(1 - share).add_(share / classes)
    try:
        return _dense(outputs, target, share, ignore_index, weight, is_mean=reduction == "mean")
    except (RuntimeError, IndexError):  # checking first costs more than the formula
        _check_labels(target[target != ignore_index], classes)
        raise


def holds_one_hot(outputs: torch.Tensor, target: torch.Tensor) -> bool:
    """Can the target only be one-hot: integers of the outputs' shape? Indices have one dimension less."""
    return target.shape == outputs.shape and not (target.is_floating_point() or target.dtype is torch.bool)


def _indices(outputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the classes of one-hot integers: none is negative, and they sum to 1."""
    if not bool((target >= 0).all() & (target.sum(1) == 1).all()):
        raise _no_classes(outputs, target)
    return target.argmax(1)


def _dense(
    outputs: torch.Tensor,
    target: torch.Tensor,
    share: float,
    ignore_index: int,
    weight: torch.Tensor | None,
    *,
    is_mean: bool,
) -> torch.Tensor:
    classes = outputs.shape[1]
    others, own = share / classes, 1 - share + share / classes
    labels = target.long()
    if (weight is None or not is_mean) and ignore_index < 0 and _refuses_ignored(labels):
        dense = torch.full(outputs.shape, others, dtype=_dtype_for(outputs), device=labels.device)
        try:
            return dense.scatter_(1, labels.unsqueeze(1), own)
        except RuntimeError:
            pass
    ignored = labels == ignore_index
    labels = labels.masked_fill(ignored, 0)
    scale = (~ignored).to(_dtype_for(outputs))  # (N, ...): what the row is multiplied by
    if is_mean:
        scale = scale * _all_rows_over_divisor(labels, scale, weight)
    dense = (scale * others).unsqueeze(1).expand(outputs.shape).clone(memory_format=torch.contiguous_format)
    return dense.scatter_(1, labels.unsqueeze(1), (scale * own).unsqueeze(1))


def _check_weight(weight: object, classes: int) -> None:
    """Raise unless there is one weight per class, (K,)."""
    if not isinstance(weight, torch.Tensor):
        raise ArgumentTypeError(f"the weight of label smoothing has to be a tensor, not a {type(weight).__name__}")
    if weight.shape != (classes,):
        raise ArgumentError(
            f"the weight of label smoothing has the shape {tuple(weight.shape)}, but the outputs have {classes} "
            f"classes: give one number for each, ({classes},)"
        )


def _check_labels(labels: torch.Tensor, classes: int) -> None:
    """Raise unless all labels are classes."""
    if labels.device.type != "cpu" or not labels.numel():
        return
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise ArgumentError(
            f"label smoothing found labels from {low} to {high}, but the outputs have {classes} classes, 0 to "
            f"{classes - 1}; labels to ignore have to be the ignore_index of the loss"
        )


def _check_pair(outputs: torch.Tensor, target: torch.Tensor) -> None:
    """Raise unless outputs (N, K, ...) and a target, (N, ...) or (N, K, ...), match, with K at least 2."""
    for name, given in (("outputs", outputs), ("target", target)):
        if not isinstance(given, torch.Tensor):
            raise ArgumentTypeError(f"the {name} of label smoothing have to be a tensor, not a {type(given).__name__}")
    shape, classes = outputs.shape, outputs.shape[1:2]
    if not classes or classes[0] < 2:
        raise ArgumentError(
            f"label smoothing needs outputs (N, K, ...) with K of 2 or more classes, not {tuple(shape)}: "
            "for one output per row, smooth the targets in the data, y * (1 - s) + s / 2, or give the model two outputs"
        )
    expected = shape if target.is_floating_point() else shape[:1] + shape[2:]
    if target.shape != expected and not holds_one_hot(outputs, target):
        raise _no_classes(outputs, target)


def _no_classes(outputs: torch.Tensor, target: torch.Tensor) -> ArgumentError:
    shape = tuple(outputs.shape)
    return ArgumentError(
        f"label smoothing can't find the classes: outputs {shape} go with indices {(*shape[:1], *shape[2:])} or floats "
        f"{shape}, or with one-hot integers of that shape (one 1, else 0), but the target is {target.dtype} "
        f"{tuple(target.shape)}; the classes have to be dimension 1 of the outputs, as for cross_entropy"
    )


def _dtype_for(tensor: torch.Tensor) -> torch.dtype:
    """Return the tensor's own dtype, or float32 in place of half precision, where 1 - 0.1 is 0.8984."""
    return torch.promote_types(tensor.dtype, torch.float32)


def _refuses_ignored(labels: torch.Tensor) -> bool:
    """Does an ignored label raise when used as an index? Then there is no need to look for any, which takes longer.

    Another device crashes, a compiled graph writes nonsense.
    """
    return labels.device.type == "cpu" and labels.numel() > 0 and not torch.compiler.is_compiling()


def _all_rows_over_divisor(labels: torch.Tensor, counted: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    """Return what turns a mean over all rows into the weighted mean of the counted ones; 0 if none counts."""
    divisor = (counted if weight is None else weight[labels] * counted).sum()
    return torch.where(divisor > 0, labels.numel() / divisor, 0.0)
