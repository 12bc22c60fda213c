"""Sharpness-aware gradients as a function of parameters and a closure. Independent of the engine."""
# ruff: noqa: SLF001  torch.optim's own kernels for many tensors at once have no public name

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import nn

from engine_core.arguments import check_number
from engine_core.errors import ArgumentTypeError

from .gradients import gradient_norm, with_gradient
from .weights import check_made, is_expanded

__all__ = ["RHO", "check_rho", "held_buffers", "sharpness_aware_gradients"]

T = TypeVar("T")

RHO = 0.05
"""The paper's value for CIFAR and ImageNet."""


def check_rho(rho: object) -> float:
    """Return how far the weights are moved, if it is valid."""
    return check_number("rho", rho, "(0, inf)", "how far the weights are moved, as an L2 norm over all of them")


def sharpness_aware_gradients(
    parameters: Iterable[nn.Parameter], closure: Callable[[], T], rho: float = RHO
) -> T | None:
    """Replace the gradients with those at the point `rho` up the slope; the weights are bit-equal afterwards.

    Source: Foret et al. 2020, Sharpness-Aware Minimization for Efficiently Improving Generalization, arXiv 2010.01412,
    eq. 2 with p = 2. The gradients g of the loss have to exist. The weights w become `w + rho * g / ||g||`, with
    one norm over all parameters, and `closure` computes the gradients there.

    Args:
        parameters: those that are trained; the ones without a gradient, and frozen ones, are skipped.
        closure: resets the gradients, then runs forward and backward on the same batch.

    Returns:
        What `closure` returned; None if there is no direction: ||g|| is 0, not finite, or so small that
        `rho / ||g||` overflows the parameters' dtype. Then nothing happened.

    Raises:
        ValueError: for a sparse gradient, or a `rho` out of range.
        TypeError: for a `closure` that can't be called.

    Example:
        >>> w = nn.Parameter(torch.tensor([3.0, 4.0]))
        >>> def closure():
        ...     w.grad = None
        ...     (w**2).sum().backward()
        >>> closure()
        >>> sharpness_aware_gradients([w], closure, rho=1.0)
        >>> w.tolist(), w.grad.tolist()  # 2 (w + w / ||w||)
        ([3.0, 4.0], [7.199999809265137, 9.600000381469727])
    """
    rho = check_rho(rho)
    if not callable(closure):
        raise ArgumentTypeError(
            f"closure={closure!r} can't be called: give a function that computes the gradients again"
        )
    weights = with_gradient(parameters)
    length = gradient_norm([gradient for _, gradient in weights])
    if length == 0 or not math.isfinite(length):
        return None
    scale = rho / length
    if any(scale > torch.finfo(weight.dtype).max for weight, _ in weights):
        return None
    kept = [(moved, [weight.detach().clone() for weight in moved]) for moved, _ in _by_kind(weights)]
    try:
        with torch.no_grad():
            for moved, gradients in _by_kind(weights):
                torch._foreach_add_(moved, gradients, alpha=scale)
        del weights, moved, gradients  # so that the closure can free the gradients before it makes others
        return closure()
    finally:
        with torch.no_grad():
            for own, copies in kept:
                torch._foreach_copy_(own, copies)


@contextmanager
def held_buffers(model: nn.Module | None) -> Iterator[None]:
    """Restore all buffers of a model after the block, including BatchNorm's statistics and counts.

    Raises:
        ArgumentError: (a ValueError) for a lazy buffer, which has no shape yet.

    Example:
        >>> norm = nn.BatchNorm1d(2)
        >>> with held_buffers(norm):
        ...     _ = norm(torch.ones(3, 2))
        >>> norm.running_mean.tolist(), norm.num_batches_tracked.item()
        ([0.0, 0.0], 0)
    """
    kept = [
        (module._buffers, name, buffer, buffer._version, _copy(name, buffer))
        for module in (() if model is None else model.modules())
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for home, name, buffer, version, copy in kept:
                # F.batch_norm changes running statistics without bumping their version; integers it can't.
                if copy is not None and (buffer.is_floating_point() or buffer._version != version):
                    buffer.copy_(copy)
                home[name] = buffer


def _copy(name: str, buffer: torch.Tensor) -> torch.Tensor | None:
    """Return a copy, or None for a buffer that can only be replaced, not written to."""
    check_made(name, buffer)
    return None if is_expanded(buffer) else buffer.detach().clone()


def _by_kind(
    weights: list[tuple[nn.Parameter, torch.Tensor]],
) -> Iterator[tuple[list[torch.Tensor], list[torch.Tensor]]]:
    """Yield parameters and gradients by device and dtype, as the multi-tensor kernels need them."""
    kinds: dict[tuple[torch.device, torch.dtype], tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
    for weight, gradient in weights:
        of_kind = kinds.setdefault((weight.device, weight.dtype), ([], []))
        of_kind[0].append(weight)
        of_kind[1].append(gradient)
    yield from kinds.values()
