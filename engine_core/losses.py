"""Losses: their functions inside partials and wrappers, what outputs hold of them, values on their way from a GPU."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from .batch import leaves_of
from .errors import ArgumentError

__all__ = ["LateValue", "base_loss", "class_outputs", "is_torch_loss", "loss_setting", "with_reduction"]


_REDUCTIONS = ("reduction", "size_average", "reduce")


class LateValue:
    """The value of a tensor of one element, copied from a CUDA device in the order of its work.

    Reading it waits for the copy alone. `tensor.item()` would wait for all that the device was given since, and leave
    it without work. From other devices it is read when it is asked for.

    Example:
        >>> LateValue(torch.tensor(0.5)).item()
        0.5
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._value, self._copied = tensor.detach(), None
        if tensor.is_cuda:
            self._value, self._copied = self._value.to("cpu", non_blocking=True), torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record(torch.cuda.current_stream(tensor.device))

    def is_there(self) -> bool:
        """Can it be read without waiting?"""
        return self._copied is None or bool(self._copied.query())  # type: ignore[no-untyped-call]

    def item(self) -> float:
        """Wait until it can be read, and return it."""
        if self._copied is not None and not self.is_there():
            self._copied.synchronize()
        return self._value.item()


def base_loss(loss_fn: Any) -> Any:
    """Return the function or module inside partials, torch.compile's wrappers and a module's bound `forward`.

    Example:
        >>> base_loss(functools.partial(nn.functional.cross_entropy, reduction="sum")) is nn.functional.cross_entropy
        True
    """
    while (inner := _inner(loss_fn)) is not None:
        loss_fn = inner
    return loss_fn


def loss_setting(loss_fn: Any, name: str) -> Any:
    """Return what a loss function was given for `name`: a partial's keyword, a module's attribute, or None.

    Example:
        >>> loss_setting(nn.CrossEntropyLoss(), "reduction"), loss_setting(nn.functional.cross_entropy, "reduction")
        ('mean', None)
    """
    while (inner := _inner(loss_fn)) is not None:
        if isinstance(loss_fn, functools.partial) and name in loss_fn.keywords:
            return loss_fn.keywords[name]
        loss_fn = inner
    return getattr(loss_fn, name, None)


def with_reduction(loss_fn: Any, reduction: str) -> Callable[..., Any] | None:
    """Return a loss function with another reduction, of a module a copy; None if it takes no `reduction`.

    Example:
        >>> with_reduction(nn.L1Loss(), "none")(torch.tensor([1.0, 2.0]), torch.zeros(2))
        tensor([1., 2.])
        >>> with_reduction(lambda outputs, targets: outputs.mean(), "none") is None
        True
    """
    args: tuple[Any, ...] = ()
    given: dict[str, Any] = {}
    if isinstance(loss_fn, functools.partial):
        given = {name: value for name, value in loss_fn.keywords.items() if name not in _REDUCTIONS}
        args, loss_fn = loss_fn.args, loss_fn.func
    while isinstance(loss_fn, nn.Module) and (inner := _inner(loss_fn)) is not None:
        loss_fn = inner  # what torch.compile wraps; the wrapper passes on whatever is set on it, or given to it
    if isinstance(getattr(loss_fn, "reduction", None), str):
        loss_fn = copy.copy(loss_fn)
        loss_fn.reduction = reduction
        return functools.partial(loss_fn, *args, **given) if args or given else loss_fn
    try:
        call = functools.partial(getattr(loss_fn, "forward", loss_fn), *args, **given)
        inspect.signature(call).bind(None, None, reduction=reduction)
    except (TypeError, ValueError):  # a builtin may have no signature
        return None
    return functools.partial(loss_fn, *args, **given, reduction=reduction)


def _inner(loss_fn: Any) -> Any:
    """Return what a loss function passes its arguments to, None if it is the loss itself."""
    if isinstance(loss_fn, functools.partial):
        return loss_fn.func
    if isinstance(loss_fn, nn.Module):  # first, as a module that is asked for what it lacks takes long to say so
        return getattr(loss_fn, "_orig_mod", None) if type(loss_fn).__name__ == "OptimizedModule" else None
    if isinstance(module := getattr(loss_fn, "__self__", None), nn.Module) and loss_fn.__name__ == "forward":
        return module
    compiled = getattr(loss_fn, "_torchdynamo_orig_callable", None)
    return getattr(compiled, "__wrapped__", compiled)  # torch.compile wraps torch's own losses twice


def is_torch_loss(loss_fn: Any, losses: Mapping[type[nn.Module], Callable[..., Any]]) -> bool:
    """Is this one of torch's losses, as class or function? One with a `forward` or `__call__` of its own is not.

    Args:
        losses: torch's classes, each with the function that it calls.

    Example:
        >>> is_torch_loss(nn.NLLLoss(), {nn.NLLLoss: nn.functional.nll_loss})
        True
    """
    base = base_loss(loss_fn)
    if any(base is function for function in losses.values()):
        return True
    if not isinstance(base, nn.Module) or type(base).__call__ is not nn.Module.__call__:
        return False
    forward = getattr(base.forward, "__func__", None)  # of the object, which may have been given another one
    return any(isinstance(base, kind) and forward is kind.forward for kind in losses)


def class_outputs(outputs: Any, target: torch.Tensor) -> torch.Tensor:
    """Return the outputs if they are one tensor, else the one in a tuple, mapping or dataclass that fits the target.

    A tensor fits if its shape is that of integer targets (N, ...) with the classes as dimension 1, (N, K, ...), or that
    of dense targets. If several fit, as in a net with auxiliary heads, their shapes have to agree.

    Example:
        >>> class_outputs({"logits": torch.zeros(8, 4), "scale": torch.ones(())}, torch.zeros(8).long()).shape
        torch.Size([8, 4])
    """
    if isinstance(outputs, torch.Tensor):
        return outputs
    tensors = [leaf for leaf in leaves_of(outputs) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
    found = [tensor for tensor in tensors if _fits(tensor, target)]
    if len({tensor.shape for tensor in found}) == 1:
        return found[0]
    fitting = ", ".join(str(tuple(tensor.shape)) for tensor in found) or "no tensor"
    raise ArgumentError(
        f"the outputs are a {type(outputs).__name__} without a sign which tensor has the classes: {fitting} fits the "
        f"targets {tuple(target.shape)}; let the model return only the logits"
    )


def _fits(tensor: torch.Tensor, target: torch.Tensor) -> bool:
    if target.is_floating_point():
        return tensor.shape == target.shape
    return tensor.dim() > 1 and tensor.shape[:1] + tensor.shape[2:] == target.shape
