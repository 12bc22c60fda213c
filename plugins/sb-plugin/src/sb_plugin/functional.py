"""Selective Backprop as a function of one batch. Independent of the engine."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from engine_core import Objective
from engine_core.errors import ArgumentError, ArgumentTypeError
from engine_core.objective import check_loss_fn
from engine_core.randomness import private_unless

from .arguments import (
    Selector,
    check_floor,
    check_keep,
    check_multiple_of,
    check_scale_factor,
    check_selection,
    check_selector,
)
from .scoring import Manner, check_scalable, score
from .select import draw_rows, draw_uniform, number_kept
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
    selector: Selector = "composer",
    floor: float = 0.0,
    multiple_of: int = 1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows of a batch that are worth training on, hard ones rather than easy ones.

    Source: Jiang et al. 2019, Accelerating Deep Learning by Focusing on the Biggest Losers, arXiv 1910.00762. One
    forward without gradients scores the rows; `number_kept` of them are drawn by the rank of their loss and returned
    in their original order. Model, gradients and global generators do not change.

    Args:
        loss_fun: a function with a `reduction` argument, or a loss module such as `nn.CrossEntropyLoss()`.
        keep: in (0, 1]; 1 returns the batch as it is.
        scale_factor: in (0, 1]; scales the spatial size of inputs of 3, 4 or 5 dimensions for scoring.
        generator: where the draws come from; None: a private one, seeded by the system.
        selector: a distribution of `draw_rows`, or a function `(scores, k, generator) -> rows`; "uniform" scores
            nothing.
        floor: the share of the uniform distribution that is mixed in, in [0, 1).
        multiple_of: the number of kept rows is rounded down to a multiple, but never below 1.

    Raises:
        ValueError: for numbers out of range, inputs that can't be scaled, a loss that is not (n,), or a selector that
            does not give k different rows.
        TypeError: for a loss that can't be called or takes no `reduction`.

    Example:
        >>> net, x = torch.nn.Linear(3, 2), torch.randn(8, 3)
        >>> select_using_loss(x, torch.zeros(8, dtype=torch.long), net, torch.nn.CrossEntropyLoss())[0].shape
        torch.Size([4, 3])
    """
    n, k = _count(input, target, check_keep(keep), check_multiple_of(multiple_of))
    if check_scale_factor(scale_factor) != 1:
        check_scalable(input)
    check_selection(check_selector(selector), check_floor(floor))
    objective = Objective(check_loss_fn(loss_fun, "loss_fun"))
    objective.check_row_losses(model)
    own = _private_generator(input.device, os.getpid()) if generator is None else private_unless(generator)
    if k == n:
        return input, target
    if selector == "uniform":
        rows = draw_uniform(n, k, own, input.device)
    else:
        losses, _ = score(objective, model, (input, target), fresh_seed(own), Manner(scale_factor))
        rows = draw_rows(losses, k, keep, own, selector, floor)
    kept: tuple[torch.Tensor, torch.Tensor] = objective.batches.part((input, target), rows)
    return kept


def _count(inputs: object, targets: object, keep: float, multiple_of: int) -> tuple[int, int]:
    """Return how many rows there are and how many are kept."""
    counts = []
    for name, rows in (("input", inputs), ("target", targets)):
        if not isinstance(rows, torch.Tensor) or rows.dim() == 0:
            raise ArgumentTypeError(f"{name} has to be a tensor of rows, not {rows!r}")
        counts.append(rows.shape[0])
    if counts[0] != counts[1]:
        raise ArgumentError(f"input has {counts[0]} rows and target {counts[1]}: each row needs one target")
    return counts[0], number_kept(counts[0], keep, multiple_of)


@cache
def _private_generator(device: torch.device, process: int) -> torch.Generator:  # noqa: ARG001  a fork has its own
    generator = torch.Generator(device)
    generator.seed()
    return generator
