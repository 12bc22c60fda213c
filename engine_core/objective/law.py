"""The law of a loss: that of rows together is the sum of theirs, in sum and in count. Measured, on a few rows."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .loss import Loss
from .objective import Objective

AT = (1, 10, 100, 1000)
"""Which batches are measured."""
MOST_ROWS = 8
_OF_FP32, _OF_TF32, _OF_AMP = 1e-4, 2e-3, 2e-2
_ROUNDING = 1e-2
"""Smaller sums may be what rounding leaves of larger terms, where a model fits its data or terms cancel."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Law:
    """That the loss of rows together is the sum of theirs, in sum and in count, for the loss of one run.

    Args:
        run: runs a function without a trace: in eval mode, without gradients, with generators and buffers put back.
        any_rank: is something so on any rank? Of several ranks all measure at the same time.
        tolerance: relative, see `tolerance_of`.
        in_eval: of the loss of evaluations?
    """

    objective: Objective
    model: Any
    run: Callable[[Callable[[], Any]], Any]
    any_rank: Callable[[bool], bool] = bool
    tolerance: float = 1e-4
    in_eval: bool = False

    def broken_by(self, batch: Any) -> str | None:
        """Return how the first rows of a batch break it, in words: none if they don't. None: nothing can be said.

        The loss of the rows together is compared with that of their two halves.
        """
        batches, tolerance = self.objective.batches, self.tolerance
        rows = min(batches.rows(batch), MOST_ROWS)
        if self.any_rank(rows < 2):
            return None
        half = rows // 2
        parts = [batches.part(batch, slice(*ends)) for ends in ((0, rows), (0, half), (half, rows))]
        found = self._losses_of(parts)
        is_measured = len(found) > 1 and None not in found
        is_broken = is_measured and not _agree(found[0], found[1:], tolerance)
        if not self.any_rank(is_broken):
            return "" if is_measured else None
        again = self._losses_of(parts[:1] * 4)[1:]  # generators are put back before the first
        # If it draws, nothing can be said.
        is_same = [_are_close(each.sum, found[0].sum, each.sum.abs(), tolerance) for each in again if is_broken]
        if not is_same or not all(is_same):
            return None
        together, apart = found[0].mean.item(), Loss.merged(found[1:]).mean.item()
        name = self.objective.name_of_loss(self.model)
        seen = f"{name} gives {together:.6g} for {rows} rows together and {apart:.6g} for them in two halves"
        return f"{seen}, {_remedy(found[0], found[1:], [half, rows - half], tolerance)}"

    def _losses_of(self, parts: list[Any]) -> list[Any]:
        try:
            return self.run(lambda: [self._loss_of(part) for part in parts])  # type: ignore[no-any-return]
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:  # noqa: BLE001  a model may refuse so few rows
            _log.debug("the loss could not be measured on a few rows: %r", error)
            return []

    def _loss_of(self, part: Any) -> Loss | None:
        objective = self.objective
        outputs = objective.forward(self.model, part)
        loss: Any = (objective.eval_loss if self.in_eval else objective.loss)(self.model, outputs, part)
        return None if loss is None else objective.counted(loss, outputs, part).detach()


def tolerance_of(precision: str, device: torch.device) -> float:
    """Return how exactly sums of different rows agree in a precision."""
    if precision != "fp32":
        return _OF_AMP
    is_tf32 = torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32
    return _OF_TF32 if device.type == "cuda" and is_tf32 else _OF_FP32


def couples_rows(model: torch.nn.Module) -> list[str]:
    """Return the names of the modules whose outputs in training depend on which rows they see together."""
    nn = torch.nn
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
    return [name for name, module in model.named_modules() if isinstance(module, kinds) and module.training]


def _agree(whole: Loss, halves: list[Loss], tolerance: float) -> bool:
    """Is the law kept, in sum and in count?"""
    if any((half.count is None) != (whole.count is None) for half in halves):
        return False
    if not bool(torch.isfinite(whole.sum)):
        return True
    joined = Loss.merged(halves)
    scale: Any = sum((half.sum.abs() for half in halves), whole.sum.abs())
    if whole.count is not None:
        together, apart = (torch.as_tensor(n, dtype=torch.float64, device="cpu") for n in (whole.count, joined.count))
        if not _are_close(together, apart, together.abs(), tolerance):
            return False
    return _are_close(whole.sum, joined.sum, scale, tolerance)


def _are_close(one: torch.Tensor, other: torch.Tensor, scale: torch.Tensor, tolerance: float) -> bool:
    return bool((one - other).abs() <= tolerance * scale.clamp(min=_ROUNDING))


def _remedy(whole: Loss, halves: list[Loss], rows: list[int], tolerance: float) -> str:
    """Say what to write; if the measured values fit another answer, that one."""
    means = [loss.mean for loss in (whole, *halves)]
    if whole.count is not None and _are_close(means[0], means[1] + means[2], means[0].abs(), tolerance):
        return 'which is a sum over rows: say Objective(loss_fn, count="sum"), or return Loss(sum, None)'
    if whole.count is None and _are_close(
        means[0] * sum(rows), means[1] * rows[0] + means[2] * rows[1], means[0].abs() * sum(rows), tolerance
    ):
        return 'which is a mean over rows: say Objective(loss_fn, count="rows"), or return Loss(mean * rows, rows)'
    return "so parts don't add up to the batch: return engine_core.Loss(sum, count), say Objective(count=...)"
