"""The check of the models that functions take."""

from __future__ import annotations

from torch import nn

from engine_core.errors import ArgumentTypeError

__all__ = ["check_model"]


def check_model(model: object) -> None:
    """Raise an ArgumentTypeError, with the words of `replace_modules`, unless this is a module."""
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(f"model: {type(model).__name__} is not a torch.nn.Module")
