"""What is in a model's outputs: the tensor whose dimension 1 are the classes, a loss."""

from __future__ import annotations

from typing import Any

import torch

from .batch import map_batch
from .errors import ArgumentError

__all__ = ["class_outputs", "holds_loss"]


def class_outputs(outputs: Any, target: torch.Tensor) -> torch.Tensor:
    """Return the outputs if they are one tensor, else the one in a tuple, mapping or dataclass that fits the target.

    One fits if its shape is that of integer targets (N, ...) with the classes as dimension 1, (N, K, ...), or that of
    dense ones. Several that fit, as those of a net with auxiliary heads, have to agree in their shape.

    Raises:
        ArgumentError: (a ValueError) if none fits, or those that do differ.

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
    raise ArgumentError(
        f"the outputs are a {type(outputs).__name__} and don't say which tensor has the classes: {fitting} fits the "
        f"targets {tuple(target.shape)}; let the model return the logits alone"
    )


def holds_loss(outputs: Any, loss: Any) -> bool:
    """Is this loss the very tensor that the model put into its outputs?

    Then it was computed in the forward, from the targets as they were there.

    Example:
        >>> loss = torch.ones(())
        >>> holds_loss({"loss": loss}, loss), holds_loss({"loss": loss}, loss.clone())
        (True, False)
    """
    if not isinstance(loss, torch.Tensor) or isinstance(outputs, torch.Tensor):
        return loss is outputs
    found: list[bool] = []
    map_batch(outputs, lambda leaf: found.append(leaf is loss))
    return any(found)


def _fits(tensor: torch.Tensor, target: torch.Tensor) -> bool:
    if target.is_floating_point():
        return tensor.shape == target.shape
    return tensor.dim() > 1 and tensor.shape[:1] + tensor.shape[2:] == target.shape
