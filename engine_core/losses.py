"""What can be known of a loss function: which of torch's it is, within partials or compiled, and its settings."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

__all__ = ["base_loss", "is_torch_loss", "loss_setting"]


def base_loss(loss_fn: Any) -> Any:
    """Return the function or module within partials, what torch.compile has made of it, and a module's `forward`.

    Example:
        >>> base_loss(functools.partial(nn.functional.cross_entropy, reduction="sum")) is nn.functional.cross_entropy
        True
    """
    while (inner := _inner(loss_fn)) is not None:
        loss_fn = inner
    return loss_fn


def loss_setting(loss_fn: Any, name: str) -> Any:
    """Return what a loss function was given for `name`: a partial's keyword, a module's attribute; None: nothing.

    Example:
        >>> loss_setting(nn.CrossEntropyLoss(), "reduction"), loss_setting(nn.functional.cross_entropy, "reduction")
        ('mean', None)
    """
    while (inner := _inner(loss_fn)) is not None:
        if isinstance(loss_fn, functools.partial) and name in loss_fn.keywords:
            return loss_fn.keywords[name]
        loss_fn = inner
    return getattr(loss_fn, name, None)


def _inner(loss_fn: Any) -> Any:
    """Return what a loss function hands its arguments on to, None where it is the loss itself."""
    if isinstance(loss_fn, functools.partial):
        return loss_fn.func
    if isinstance(module := getattr(loss_fn, "_orig_mod", None), nn.Module):
        return module
    if isinstance(module := getattr(loss_fn, "__self__", None), nn.Module) and loss_fn.__name__ == "forward":
        return module
    compiled = getattr(loss_fn, "_torchdynamo_orig_callable", None)
    return getattr(compiled, "__wrapped__", compiled)  # around one of torch's own torch.compile puts a function more


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
