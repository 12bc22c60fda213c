"""What is in a model's outputs: the tensor whose dimension 1 are the classes, a loss. Knows no engine."""

from __future__ import annotations

from typing import Any

import torch

from engine_core.batch import map_batch
from engine_core.errors import ArgumentTypeError

__all__ = ["class_outputs", "is_in"]


def class_outputs(outputs: Any, target: torch.Tensor) -> torch.Tensor:
    """Return the outputs, or of a tuple, mapping or dataclass the first tensor that fits the target.

    A tensor fits if its shape is the target's with one dimension more, the classes, in place 1; for dense targets, if
    it is the target's. Several that fit, as those of a net with auxiliary heads, have to agree.

    Raises:
        ArgumentTypeError: (a TypeError) if none fits, or they differ in the number of classes.

    Example:
        >>> class_outputs({"logits": torch.zeros(8, 4), "scale": torch.ones(())}, torch.zeros(8).long()).shape
        torch.Size([8, 4])
    """
    if isinstance(outputs, torch.Tensor):
        return outputs
    found: list[torch.Tensor] = []

    def look(leaf: Any) -> None:
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and _fits(leaf, target):
            found.append(leaf)

    map_batch(outputs, look)
    if len({tensor.shape for tensor in found}) == 1:
        return found[0]
    fitting = ", ".join(str(tuple(tensor.shape)) for tensor in found) or "no tensor"
    raise ArgumentTypeError(
        f"label_smoothing can't tell which of the outputs (a {type(outputs).__name__}) are the classes': "
        f"{fitting} fits the target {tuple(target.shape)}; let the model return the logits alone"
    )


def is_in(outputs: Any, loss: Any) -> bool:
    """Is this loss the very tensor that the model put into its outputs?"""
    if not isinstance(loss, torch.Tensor) or isinstance(outputs, torch.Tensor):
        return loss is outputs
    found: list[bool] = []
    map_batch(outputs, lambda leaf: found.append(leaf is loss))
    return any(found)


def _fits(tensor: torch.Tensor, target: torch.Tensor) -> bool:
    if target.is_floating_point():
        return tensor.shape == target.shape
    return tensor.shape[:1] + tensor.shape[2:] == target.shape and tensor.dim() > 1
