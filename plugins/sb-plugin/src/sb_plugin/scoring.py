"""The scoring forward: the loss of each row of a batch, without side effects. Independent of State."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn import functional as F

from engine_core import Objective
from engine_core.batch import BatchKey, get_item, map_batch, set_item
from engine_core.errors import ArgumentError, ArgumentTypeError
from engine_core.messages import warn
from engine_core.objective import row_losses

from .untouched import frozen_buffers, own_randomness

__all__ = [
    "Manner",
    "as_scores",
    "borrowed_loss",
    "check_scalable",
    "leaving_no_trace",
    "no_autocast",
    "rank_correlation",
    "score",
    "summary_of",
]

T = TypeVar("T")

_MODES = {3: "linear", 4: "bilinear", 5: "trilinear"}


def check_scalable(inputs: Any) -> None:
    """Raise if inputs have no spatial dimensions to scale."""
    if not isinstance(inputs, torch.Tensor):
        raise ArgumentError(f"scale_factor scales one tensor, but the input is a {type(inputs).__name__}: set it to 1")
    if inputs.dim() not in _MODES:
        raise ArgumentError(
            f"scale_factor needs inputs of 3, 4 or 5 dimensions, but these have {inputs.dim()} "
            f"(shape {tuple(inputs.shape)}): set scale_factor=1"
        )


def _with_scaled_input(batch: Any, key: BatchKey, scale_factor: float) -> Any:
    twin, inputs = map_batch(copy.copy(batch), lambda leaf: leaf), get_item(batch, key)  # a setter may write to it
    return set_item(twin, key, F.interpolate(inputs, scale_factor=scale_factor, mode=_MODES[inputs.dim()]))


def no_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Return the context in which a forward runs in the precision of the weights, whatever surrounds it."""
    return torch.autocast(device.type, enabled=False)


@dataclass(frozen=True)
class Manner:
    """How a scoring forward runs.

    Args:
        scale_factor: for the spatial size of the input, in (0, 1].
        bn: see `frozen_buffers`.
        autocast: the context for its precision; None: the surrounding one.
        input_key: where the input is that is scaled.
    """

    scale_factor: float = 1
    bn: str = "frozen"
    autocast: AbstractContextManager[Any] | None = None
    input_key: BatchKey = 0


PLAIN = Manner()


def leaving_no_trace(
    block: Callable[[], T], model: object, objective: Objective, seed: int, manner: Manner = PLAIN
) -> T:
    """Return what a block returns, run without a graph, recorded statistics or a draw from a global generator.

    Dropout within it draws from `seed`. Modules that the objective has, such as its loss, are held too.
    """
    held = borrowed_loss(objective, seed), frozen_buffers(model, manner.bn)
    with torch.no_grad(), manner.autocast or nullcontext(), held[0], held[1]:
        return block()


@contextmanager
def borrowed_loss(objective: Objective, seed: int) -> Iterator[None]:
    """Hold the modules that the objective has, such as its loss, autocast's casts, and generators, seeded by `seed`."""
    with ExitStack() as holds:
        for each in vars(objective).values():
            if isinstance(each, nn.Module):
                holds.enter_context(frozen_buffers(each))
        holds.enter_context(_forgotten_casts())
        holds.enter_context(own_randomness(seed))
        yield


@contextmanager
def _forgotten_casts() -> Iterator[None]:
    """Keep autocast from remembering the weights that it casts in the block.

    Those are cast without gradients. torch 2.4 uses them again in training, where they would get none.
    """
    was_enabled = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(was_enabled)


def as_scores(given: Any, n: int, who: str) -> torch.Tensor:
    """Return what the user's code gave for scores (n,), in single precision.

    Raises:
        ArgumentError, ArgumentTypeError: (a ValueError, a TypeError) if it is something else.
    """
    if not isinstance(given, torch.Tensor):
        raise ArgumentTypeError(f"{who} gave a {type(given).__name__}, not a tensor of shape ({n},)")
    if given.shape != (n,):
        raise ArgumentError(f"{who} gave shape {tuple(given.shape)}, not ({n},), a score for each row")
    return given.detach().float()


def score(
    objective: Objective, model: Any, batch: Any, seed: int, manner: Manner = PLAIN, holder: Any = None
) -> tuple[torch.Tensor, bool]:
    """Return the loss of each row (n,) in single precision, and whether the model took the input as scaled.

    The model runs as it is, with dropout drawn from `seed`, and leaves no trace. If it can't take a scaled input, like
    a net with a fixed input size, it gets the full one, with a warning.

    Args:
        holder: has the loss, if a model has it; None: this one.
    """

    def run(factor: float) -> torch.Tensor:
        given = batch if factor == 1 else _with_scaled_input(batch, manner.input_key, factor)

        def losses() -> torch.Tensor:
            outputs = objective.forward(model, given)
            return row_losses(objective, model if holder is None else holder, outputs, given)

        return leaving_no_trace(losses, model, objective, seed, manner)

    factor = manner.scale_factor
    if factor == 1:
        return run(1), True
    try:
        return run(factor), True
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:  # noqa: BLE001  a model may raise anything here; at full size it is not caught
        refusal = f"{type(error).__name__}: {error}"
    losses = run(1)
    warn(
        f"{type(model).__name__} can't take inputs scaled by scale_factor={factor} ({refusal}); "
        "rows are scored at full size: set scale_factor=1",
        UserWarning,
    )
    return losses, False


def rank_correlation(scores: torch.Tensor, others: torch.Tensor) -> float:
    """Return Spearman's rank correlation of two scorings of the same rows; NaN if one has nothing to rank.

    Example:
        >>> rank_correlation(torch.tensor([1.0, 2.0, 5.0]), torch.tensor([0.1, 0.3, 0.2]))
        0.5
    """
    ranks = torch.stack([_mid_ranks(scores), _mid_ranks(others)])
    return float(torch.corrcoef(ranks)[0, 1])


def _mid_ranks(scores: torch.Tensor) -> torch.Tensor:
    """Return the rank of each score; equal scores share their mean rank."""
    _, place, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    middles: torch.Tensor = counts.cumsum(0) - (counts + 1) / 2
    return middles[place]


def summary_of(scores: torch.Tensor, rows: torch.Tensor) -> dict[str, float]:
    """Return what is logged about the scores of a step, with one transfer from the device."""
    known = scores.abs() < torch.finfo(scores.dtype).max  # neither NaN nor infinite, nor an example never seen
    zeroed, unbounded = scores.where(known, 0.0), ~scores.isfinite()
    total = torch.stack([zeroed, known.float(), unbounded.float()])
    sums = torch.cat([total.sum(1), total.index_select(1, rows).sum(1)]).tolist()
    means = {
        "loss_mean": sums[0] / sums[1] if sums[1] else math.nan,
        "kept_loss_mean": sums[3] / sums[4] if sums[4] else math.nan,
    }
    is_known = {"loss_mean": sums[1] or sums[2], "kept_loss_mean": sums[4] or sums[5]}
    return {"nonfinite": int(sums[2]), **{name: mean for name, mean in means.items() if is_known[name]}}
