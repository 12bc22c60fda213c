"""The scoring forward: the loss of each row of a batch, without side effects. Independent of the engine."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn import functional as F

from engine_core.arguments import item_at
from engine_core.batch import BatchKey, count_rows, get_item, map_batch, set_item, take_rows
from engine_core.errors import ArgumentError
from engine_core.messages import warn

from .losses import Loss, check_losses, in_fp32
from .untouched import frozen_buffers, own_randomness

__all__ = [
    "Manner",
    "Objective",
    "autocast_of",
    "check_scalable",
    "leaving_no_trace",
    "no_autocast",
    "rank_correlation",
    "score",
    "summary_of",
]

T = TypeVar("T")

_MODES = {3: "linear", 4: "bilinear", 5: "trilinear"}
_REDUCED = {"amp_bf16": torch.bfloat16, "amp_fp16": torch.float16}


@dataclass(frozen=True)
class Objective:
    """How a model and its loss see a batch.

    Args:
        loss: gives the loss of each row; None if nothing is scored.
        whole_batch: do model and loss get the whole batch, instead of inputs and targets?
        holder: the loss as it was given; if that is a module, its buffers are held too.
    """

    loss: Loss | None
    input_key: BatchKey = 0
    target_key: BatchKey = 1
    whole_batch: bool = False
    holder: object = None

    def check(self, batch: Any, scale_factor: float) -> None:
        """Raise if rows of this batch can't be scored and dropped; run nothing."""
        if not count_rows(batch if self.whole_batch else self._item(batch, "input_key")):
            raise ArgumentError("the first batch has no rows to choose from: leave empty batches out of the loader")
        if not self.whole_batch:
            self._check_pair(batch)
        if scale_factor != 1:
            check_scalable(self._item(batch, "input_key"))

    def received(self, batch: Any, scale_factor: float = 1) -> Any:
        """Return what the model gets, with the input scaled."""
        if self.whole_batch:
            return batch if scale_factor == 1 else self._with_small_input(batch, scale_factor)
        inputs = get_item(batch, self.input_key)
        return inputs if scale_factor == 1 else _scaled(inputs, scale_factor)

    def is_given(self, item: object, batch: Any) -> bool:
        """Is this, by identity, what the model or its loss gets of a batch that is a pair?"""
        keys = () if self.whole_batch else (self.input_key, self.target_key)
        return any(item is get_item(batch, key) for key in keys)

    def losses(self, outputs: Any, received: Any, batch: Any) -> Any:
        """Return the loss of each row, as the loss gives it."""
        assert self.loss is not None
        return in_fp32(self.loss, outputs, received if self.whole_batch else get_item(batch, self.target_key))

    def _with_small_input(self, batch: Any, scale_factor: float) -> Any:
        twin = map_batch(copy.copy(batch), lambda leaf: leaf)  # a user's setter may write to its argument
        return set_item(twin, self.input_key, _scaled(get_item(batch, self.input_key), scale_factor))

    def _check_pair(self, batch: Any) -> None:
        """Raise unless inputs and targets have the same rows, and taking rows of the batch takes them from both."""
        rows, others = (count_rows(self._item(batch, which)) for which in ("input_key", "target_key"))
        if others != rows:
            raise ArgumentError(f"the inputs have {rows} rows and the targets {others}: each row needs one target")
        first = take_rows(batch, rows, torch.zeros(1, dtype=torch.long))
        for which in ("input_key", "target_key"):
            if count_rows(self._item(first, which)) != 1:
                raise ArgumentError(
                    f"rows can't be taken from what {which}={getattr(self, which)!r} finds in a batch of type "
                    f"{type(batch).__name__}: make it of tuples, lists, mappings and dataclasses"
                )

    def _item(self, batch: Any, which: str) -> Any:
        return item_at(batch, which, getattr(self, which))


def check_scalable(inputs: Any) -> None:
    """Raise if inputs have no spatial dimensions to scale."""
    if not isinstance(inputs, torch.Tensor):
        raise ArgumentError(f"scale_factor scales one tensor, but the input is a {type(inputs).__name__}: set it to 1")
    if inputs.dim() not in _MODES:
        raise ArgumentError(
            f"scale_factor needs inputs of 3, 4 or 5 dimensions, but these have {inputs.dim()} "
            f"(shape {tuple(inputs.shape)}): set scale_factor=1"
        )


def _scaled(inputs: torch.Tensor, scale_factor: float) -> torch.Tensor:
    return F.interpolate(inputs, scale_factor=scale_factor, mode=_MODES[inputs.dim()])


def autocast_of(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """Return the context in which a forward of this precision runs."""
    return torch.autocast(device.type, dtype=_REDUCED[precision]) if precision in _REDUCED else nullcontext()


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
    """

    scale_factor: float = 1
    bn: str = "frozen"
    autocast: AbstractContextManager[Any] | None = None


PLAIN = Manner()


def leaving_no_trace(block: Callable[[], T], model: object, loss: object, seed: int, manner: Manner = PLAIN) -> T:
    """Return what a block returns, run without a graph, recorded statistics or a draw from a global generator.

    Dropout within it draws from `seed`. If the loss is a module, it is held too.
    """
    holds: list[own_randomness | frozen_buffers | _ForgottenCasts]
    holds = [own_randomness(seed), frozen_buffers(model, manner.bn), _ForgottenCasts()]
    if isinstance(loss, nn.Module):
        holds.append(frozen_buffers(loss))

    def release() -> None:
        for hold in holds:
            hold.release()

    try:
        with torch.no_grad(), manner.autocast or nullcontext():
            try:
                for hold in reversed(holds):
                    hold.__enter__()
                return block()
            finally:
                release()
    except BaseException:
        release()  # again, since a signal may have cut it
        raise


class _ForgottenCasts:
    """Keeps autocast from remembering the weights that it casts in the block.

    Those are cast without gradients. torch 2.4 uses them again in training, where they would get none.
    """

    def __init__(self) -> None:
        self._was_enabled = torch.is_autocast_cache_enabled()

    def __enter__(self) -> None:
        torch.set_autocast_cache_enabled(False)

    def release(self) -> None:
        """Let it remember again; may be called at any time."""
        torch.set_autocast_cache_enabled(self._was_enabled)


def score(
    objective: Objective, model: Callable[[Any], Any], batch: Any, seed: int, manner: Manner = PLAIN
) -> tuple[torch.Tensor, bool]:
    """Return the loss of each row (n,) in single precision, and whether the model took the input as scaled.

    The model runs as it is, with dropout drawn from `seed`, and leaves no trace. If it can't take a scaled input, like
    a net with a fixed input size, it gets the full one, with a warning.
    """

    def run(factor: float) -> Any:
        received = objective.received(batch, factor)
        return leaving_no_trace(
            lambda: objective.losses(model(received), received, batch), model, objective.holder, seed, manner
        )

    scale_factor = manner.scale_factor
    refusal: str | None = None
    losses: Any = None
    if scale_factor != 1:
        try:
            losses = run(scale_factor)
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:  # noqa: BLE001  a model may raise anything here; at full size it is not caught
            refusal = f"{type(error).__name__}: {error}"
    if scale_factor == 1 or refusal is not None:
        losses = run(1)
    if refusal is not None:
        name = type(model).__name__
        warn(
            f"{name} can't take inputs scaled by scale_factor={scale_factor} ({refusal}); "
            "rows are scored at full size: set scale_factor=1",
            UserWarning,
        )
    return check_losses(losses, count_rows(objective.received(batch))), refusal is None


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
