"""Selective Backprop as a function of one batch. Knows no engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from engine_core.batch import take_rows
from engine_core.errors import ArgumentError, ArgumentTypeError

from .arguments import check_keep, check_scale_factor
from .losses import per_sample
from .scoring import Objective, check_scalable, score
from .select import draw_rows, number_kept
from .untouched import fresh_seed

__all__ = ["select_using_loss"]


def select_using_loss(  # noqa: PLR0913  the reference has these
    input: torch.Tensor,  # noqa: A002
    target: torch.Tensor,
    model: Callable[[torch.Tensor], Any],
    loss_fun: Callable[..., Any],
    keep: float = 0.5,
    scale_factor: float = 1,
    *,
    generator: torch.Generator | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows of a batch that are worth training on, the hard ones rather than the easy ones.

    Source: Jiang et al. 2019, Accelerating Deep Learning by Focusing on the Biggest Losers, arXiv 1910.00762. One
    forward without gradients scores the rows; `max(1, floor(keep * n))` of them are drawn by the rank of their loss
    and returned in their original order. Model, gradients and global generators are left as they were.

    Args:
        input, target: n rows each.
        loss_fun: a function with a `reduction` argument, or a loss module such as `nn.CrossEntropyLoss()`.
        keep: in (0, 1]; 1 returns the batch as it is.
        scale_factor: in (0, 1]; scales the spatial size of inputs of 3, 4 or 5 dimensions for scoring.
        generator: where the draws come from; None: a private one, seeded by the system.

    Raises:
        ValueError: for `keep` or `scale_factor` out of range, inputs that can't be scaled, or a loss that is not (n,).
        TypeError: for a loss that can't be called or takes no `reduction`.

    Example:
        >>> net, rows = torch.nn.Linear(3, 2), torch.randn(8, 3)
        >>> x, y = select_using_loss(rows, torch.zeros(8, dtype=torch.long), net, torch.nn.CrossEntropyLoss())
        >>> x.shape, y.shape
        (torch.Size([4, 3]), torch.Size([4]))
    """
    keep, scale_factor = check_keep(keep), check_scale_factor(scale_factor)
    given: dict[str, object] = {"input": input, "target": target}
    for name, value in given.items():
        if not isinstance(value, torch.Tensor) or value.dim() == 0:
            raise ArgumentTypeError(f"{name} has to be a tensor of rows, not {value!r}")
    if input.shape[0] != target.shape[0]:
        raise ArgumentError(f"input has {input.shape[0]} rows and target {target.shape[0]}: they have to be paired")
    if scale_factor != 1:
        check_scalable(input)
    objective = Objective(per_sample(loss_fun))
    n = input.shape[0]
    k = number_kept(n, keep)
    if k == n:
        return input, target
    own = _private_generator(input.device) if generator is None else generator
    losses, _ = score(objective, model, (input, target), fresh_seed(own), scale_factor)
    rows: tuple[torch.Tensor, torch.Tensor] = take_rows((input, target), n, draw_rows(losses, k, keep, own))
    return rows


@cache
def _private_generator(device: torch.device) -> torch.Generator:
    generator = torch.Generator(device)
    generator.seed()
    return generator
