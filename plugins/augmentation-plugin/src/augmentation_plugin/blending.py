"""MixUp as a function of one batch: each row becomes a weighted mean of two rows. Independent of the engine."""

from __future__ import annotations

from typing import Any

import torch

from engine_core.errors import ArgumentError, ArgumentTypeError

from .pairings import MixedBatch, check_alpha, draw, of_partners

__all__ = ["check_blendable", "mixup_batch"]


def mixup_batch(
    input: torch.Tensor,  # noqa: A002  the field's name for it
    target: Any,
    alpha: float = 0.2,
    *,
    generator: torch.Generator | None = None,
) -> MixedBatch:
    """Blend each row of a batch with another row of it.

    Source: Zhang et al. 2017, mixup: Beyond Empirical Risk Minimization, arXiv 1710.09412. One lambda from
    Beta(alpha, alpha) for the batch; a row x_i with partner x_j becomes `lam * x_i + (1 - lam) * x_j`. See
    `mix_targets` and `mix_losses` for what to do with the targets.

    Args:
        input: floats of any shape (N, ...).
        target: tensors (N, ...), also in tuples, lists and mappings, or None; `torch.arange(N)` gives
            the pairing itself.
        generator: where the draws come from; None: seeded by the system.

    Raises:
        ArgumentTypeError: (a TypeError) if `input` is not a tensor, or `generator` is not a generator.
        ArgumentError: (a ValueError) if `input` is not floats, there is not one target per row, or alpha is not in
            (0, 1e6].

    Example:
        >>> x, y = torch.eye(4), torch.arange(4)
        >>> mixed, paired, lam = mixup_batch(x, y, generator=torch.Generator().manual_seed(0))
        >>> torch.allclose(mixed, lam * x + (1 - lam) * x[paired])
        True
    """
    check_alpha(alpha)
    check_blendable(input)
    drawn = draw(alpha, generator)
    order = drawn.pairing(input.shape[0]).to(input.device, non_blocking=True)
    mixed = torch.lerp(input, of_partners(input, order), 1 - drawn.lam)
    return MixedBatch(mixed, of_partners(target, order), drawn.lam)


def check_blendable(rows: object) -> None:
    """Raise unless these are rows of numbers with a meaningful weighted mean."""
    if not isinstance(rows, torch.Tensor):
        raise ArgumentTypeError(f"MixUp blends one tensor, but the input is a {type(rows).__name__}: name the tensor")
    if rows.dim() == 0:
        raise ArgumentError("MixUp blends the rows of the input, but it is one number")
    if not rows.is_floating_point() and not rows.is_complex():
        raise ArgumentError(
            f"MixUp blends floats, but the input is {rows.dtype}: convert images to floats first; the mean of two "
            "ids, such as tokens, is the id of something else"
        )
