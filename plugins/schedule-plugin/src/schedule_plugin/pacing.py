"""From easy to hard: which examples are admitted at a point of the training. Independent of the engine's loop."""

from __future__ import annotations

import math

import torch

from engine_core.arguments import check_number
from engine_core.errors import ArgumentError

__all__ = ["admitted_share", "check_pacing", "checked_scores", "easiest"]

_EXACT = 1e-9
"""How far rounding may take a number of examples from the whole one that it should be."""


def admitted_share(done: float, start: float = 0.2, end: float = 0.5, root: float = 1.0) -> float:
    """Return the share of the examples that are admitted at a point of the training, the easiest ones.

    It grows from `start` to 1 at `end`, as `(start**root + (1 - start**root) * done / end) ** (1 / root)`. Source:
    Bengio et al. 2009, Curriculum Learning; the roots are those of Platanios et al. 2019, Competence-based Curriculum
    Learning for Neural Machine Translation, arXiv 1903.09848.

    Args:
        done: the fraction of the training that is done.
        start: the share at the start, in (0, 1].
        end: the fraction of the training from which on all are admitted, in (0, 1].
        root: 1 or more. With 1 it grows linearly; with 2, as in the second paper, faster at the start.

    Raises:
        ValueError: for a number out of range.
        TypeError: for an argument that is not a number.

    Example:
        >>> [round(admitted_share(tenth / 10), 2) for tenth in range(7)]
        [0.2, 0.36, 0.52, 0.68, 0.84, 1.0, 1.0]
        >>> [round(admitted_share(tenth / 10, root=2), 2) for tenth in range(7)]
        [0.2, 0.48, 0.65, 0.78, 0.9, 1.0, 1.0]
    """
    check_number("done", done, "[0, inf)", "the fraction of the training that is done")
    start, end, root = check_pacing(start, end, root)
    if done >= end:
        return 1.0
    first = float(start**root)
    return min(1.0, float((first + (1 - first) * done / end) ** (1 / root)))


def check_pacing(start: object, end: object, root: object) -> tuple[float, float, float]:
    """Return the arguments of `admitted_share` if they are within their ranges."""
    return (
        check_number("start", start, "(0, 1]", "the share of the examples with which training starts"),
        check_number("end", end, "(0, 1]", "the part of the training after which all examples are admitted"),
        check_number("root", root, "[1, inf)", "1 admits linearly, 2 by the square root"),
    )


def easiest(scores: torch.Tensor, share: float, batch_size: int) -> torch.Tensor:
    """Return the places of the easiest examples, as int64 (k,) from easy to hard; of equal ones the first come first.

    These are at least that share of all, and a batch. Where a batch of a single one would be left over, there is one
    more: BatchNorm can't train on that.

    Args:
        scores: the difficulty of each example (n,); higher is harder.

    Example:
        >>> easiest(torch.tensor([0.3, 0.1, 0.2, 0.1]), 0.5, batch_size=2).tolist()
        [1, 3]
    """
    count = max(math.ceil(share * len(scores) - _EXACT), batch_size)
    count += count % batch_size == 1 and batch_size > 1
    return scores.argsort(stable=True)[:count]


def checked_scores(given: object, size: int) -> torch.Tensor:
    """Return the difficulties of so many examples as float64 (n,).

    Raises:
        ArgumentError: (a ValueError) if there is not one number for each.
    """
    try:
        scores = torch.as_tensor(given, dtype=torch.float64, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(f"the difficulties of the examples have to be numbers (n,), not {given!r:.80}") from error
    if scores.shape != (size,):
        raise ArgumentError(
            f"there are difficulties of shape {tuple(scores.shape)} for the {size} examples of the train_dataloader: "
            "give one number for each, by its place in that dataset; for a Subset scores[subset.indices]"
        )
    if bad := scores.isnan().nonzero().flatten().tolist():
        raise ArgumentError(f"the difficulty of example {bad[0]} is NaN, so it can't be placed: give it a number")
    return scores
