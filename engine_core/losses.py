"""What can be known of a loss function: which of torch's it is, within partials or compiled, and its settings."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

__all__ = ["base_loss", "is_torch_loss", "loss_setting"]


def base_loss(loss_fn: Any) -> Any:
    """Return the function or module within partials and what torch.compile has made of a module.

    Example:
        >>> base_loss(functools.partial(nn.functional.cross_entropy, reduction="sum")) is nn.functional.cross_entropy
        True
    """
    while isinstance(loss_fn, functools.partial):
        loss_fn = loss_fn.func
    inner = getattr(loss_fn, "_orig_mod", None)
    return inner if isinstance(inner, nn.Module) else loss_fn


def loss_setting(loss_fn: Any, name: str) -> Any:
    """Return what a loss function was given for `name`: a partial's keyword, a module's attribute; None: nothing.

    Example:
        >>> loss_setting(nn.CrossEntropyLoss(), "reduction"), loss_setting(nn.functional.cross_entropy, "reduction")
        ('mean', None)
    """
    while isinstance(loss_fn, functools.partial):
        if name in loss_fn.keywords:
            return loss_fn.keywords[name]
        loss_fn = loss_fn.func
    return getattr(loss_fn, name, None)


def is_torch_loss(loss_fn: Any, losses: Mapping[type[nn.Module], Callable[..., Any]]) -> bool:
    """Is this one of torch's losses, as class or function? A subclass with a `forward` of its own is none.

    Args:
        losses: torch's classes, each with the function that it calls.

    Example:
        >>> is_torch_loss(nn.NLLLoss(), {nn.NLLLoss: nn.functional.nll_loss})
        True
    """
    base = base_loss(loss_fn)
    if any(base is function for function in losses.values()):
        return True
    return any(isinstance(base, kind) and type(base).forward is kind.forward for kind in losses)
