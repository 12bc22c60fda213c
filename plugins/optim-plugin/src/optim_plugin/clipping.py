"""Gradients made smaller: of each unit by the norm of its weights, or all where their norm is a spike. No engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn

from .gradients import with_gradient

__all__ = ["clip_adaptively", "mean_and_variance", "spike_limit"]

_SMALLEST = 1e-3
"""What the norm of a unit's weights counts at least, so that weights of 0 can begin to train."""


@torch.no_grad()
def clip_adaptively(parameters: Iterable[nn.Parameter], threshold: float) -> None:
    """Shorten the gradient of each unit to at most `threshold` times the norm of its weights, in place.

    Source: Brock et al. 2021, High-Performance Large-Scale Image Recognition Without Normalization, arXiv 2102.06171,
    eq. 3. A unit is what belongs to one output: a row of a weight, which is its first dimension, or a whole vector,
    such as a bias. The norm of weights counts as 0.001 at least.

    Raises:
        ArgumentError: (a ValueError) for a sparse gradient.

    Example:
        >>> w = nn.Parameter(torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
        >>> w.grad = torch.tensor([[3.0, 4.0], [0.0, 0.25]])
        >>> clip_adaptively([w], threshold=0.5)
        >>> w.grad.tolist()
        [[1.5, 2.0], [0.0, 0.25]]
    """
    for weight, gradient in with_gradient(parameters):
        limit, length = threshold * _unit_norms(weight).clamp_min(_SMALLEST), _unit_norms(gradient)
        # Where the gradient is 0, the quotient is infinite or NaN, and it stays.
        factor = torch.where(length > limit, limit / length, 1.0)
        gradient.mul_(factor.to(gradient.dtype))


def _unit_norms(tensor: torch.Tensor) -> torch.Tensor:
    """Return the norm of each unit, (out, 1, ..., 1), or a scalar for a vector; of 16 bits in float32."""
    wide = tensor.float() if tensor.dtype in (torch.half, torch.bfloat16) else tensor
    units = None if tensor.ndim < 2 else tuple(range(1, tensor.ndim))
    norms: torch.Tensor = torch.linalg.vector_norm(wide, dim=units, keepdim=units is not None)
    return norms


def mean_and_variance(norms: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the variance, over the number of them.

    Example:
        >>> mean_and_variance([1.0, 3.0])
        (2.0, 1.0)
    """
    mean = sum(norms) / len(norms)
    return mean, sum((norm - mean) ** 2 for norm in norms) / len(norms)


def spike_limit(norm: float, mean: float, variance: float, z_threshold: float = 2.5) -> float:
    """Return what a gradient's norm is to be, given the mean and variance of norms: itself, unless it is a spike.

    Source: Kumar et al. 2025, ZClip: Adaptive Spike Mitigation for LLM Pre-Training, arXiv 2504.02507. A spike is more
    than `z_threshold` standard deviations above the mean, say z. It becomes `z_threshold**2 / z` of them above it: the
    higher the spike, the less is left of it.

    Example:
        >>> spike_limit(1.5, 1.0, variance=0.0625), spike_limit(2.25, 1.0, variance=0.0625)  # doctest: +ELLIPSIS
        (1.5, 1.312...)
    """
    deviation = variance**0.5
    z = (norm - mean) / (deviation + 1e-6)
    return norm if z <= z_threshold else mean + z_threshold**2 / z * deviation
