"""Log the norm of the gradients of each step. Knows no Trainer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from engine_core.callback import Callback
from engine_core.logger import Logger
from engine_core.state import State

if TYPE_CHECKING:
    import torch

__all__ = ["GradientNorm"]


class GradientNorm(Callback):
    """Logs the norm of all gradients together: `train/gradient_norm`, and `train/gradient_norm_clipped` if they are.

    Both are of unscaled gradients: the first as they were before `grad_clip_norm`, the second as they are after it and
    after the algorithms of AFTER_TRAIN_BATCH. Without clipping the first is of the gradients after the algorithms. They
    are logged at BATCH_END, under the step of the batch's loss; a step that is skipped logs none. Without loggers
    nothing is measured. On several processes the gradients are those of the global batch, sharded or not. Reading the
    norms makes a GPU wait in each step. Of several in a run only the first one logs.

    Example:
        >>> import torch
        >>> from engine_core_author import RecordingDestination
        >>> weight = torch.nn.Parameter(torch.zeros(2))
        >>> weight.grad = torch.tensor([3.0, 4.0])
        >>> state = State(optimizers=torch.optim.SGD([weight], lr=0.1))
        >>> GradientNorm().after_train_batch(state, Logger([RecordingDestination()]))
        >>> state.gradient_norm
        tensor(5.)
    """

    def __init__(self) -> None:
        self._clipped: torch.Tensor | None = None
        self._rests = self._is_logged = False

    def init(self, state: State, logger: Logger) -> None:
        """Leave it to the first: a second one would take what that measures for what the loop clipped."""
        self._rests = next((each for each in state.callbacks if isinstance(each, GradientNorm)), self) is not self

    def fit_start(self, state: State, logger: Logger) -> None:
        """Measure on all ranks if one of them logs: the norm of sharded gradients takes all."""
        self._is_logged = state.ranks.any(logger.destinations)

    def before_train_batch(self, state: State, logger: Logger) -> None:
        """Forget the norm of the batch before: a loop that clips sets it anew."""
        if not self._rests:
            state.gradient_norm = None

    def after_train_batch(self, state: State, logger: Logger) -> None:
        """Measure what the loop did not: the norm after clipping or, if it doesn't clip, the only one."""
        self._clipped = None
        if self._rests or not (self._is_logged or logger.destinations):
            return
        norm = _norm(state)
        if state.gradient_norm is None:
            state.gradient_norm = norm
        else:
            self._clipped = norm

    def batch_end(self, state: State, logger: Logger) -> None:
        """Log; only now is it known that no listener of AFTER_TRAIN_BATCH has skipped the step."""
        if self._rests or state.gradient_norm is None or not logger.destinations:
            return
        norms = {"train/gradient_norm": state.gradient_norm.item()}
        if state.precision == "amp_fp16" and not math.isfinite(norms["train/gradient_norm"]):
            return  # then the scaler has skipped it
        if self._clipped is not None:
            norms["train/gradient_norm_clipped"] = self._clipped.item()
        logger.log_metrics(norms, state.timestamp.batch - 1)


def _norm(state: State) -> torch.Tensor:
    """Return the norm of all gradients that the optimizers step with, computed as torch's clip_grad_norm_ does."""
    import torch  # noqa: PLC0415  it can be listed without torch

    gradients = list(_gradients(state))
    if hasattr(torch.nn.utils, "get_total_norm"):  # many tensors at once; torch 2.4 has none
        return _whole(torch.nn.utils.get_total_norm(gradients))
    norms = [torch.linalg.vector_norm(gradient) for gradient in gradients]
    return torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros(())


def _whole(norm: Any) -> torch.Tensor:
    """Return the norm over all ranks, if that of sharded gradients is a part on each."""
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # type: ignore[no-any-return]


def _gradients(state: State) -> Iterator[torch.Tensor]:
    for optimizer in state.optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if (grad := parameter.grad) is not None:
                    yield grad.detach().coalesce().values() if grad.is_sparse else grad.detach()
