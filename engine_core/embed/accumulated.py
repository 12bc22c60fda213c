"""A step that is made of several batches, or on several processes: its gradients are those of what its losses count."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..objective import Loss, Objective
from .loop import EmbeddedLoop


class Accumulated:
    """The losses of a step. Sums over a nominal number are differentiated; after the last, one factor makes the mean.

    Attributes:
        batches: of the step; a loop may divide by it what it differentiates.

    Args:
        loop: its State's objective counts, and State gets the loss of the step.
        summed: returns the sum of a tensor over the processes, whose gradients are averaged; None: there is one.

    Example:
        >>> import engine_core
        >>> from engine_core.needs import EVERYTHING
        >>> weight = torch.nn.Parameter(torch.ones(()))
        >>> state = engine_core.State(loss_fn=torch.nn.MSELoss(), optimizers=[torch.optim.SGD([weight], lr=0.1)])
        >>> step = Accumulated(EmbeddedLoop(state, EVERYTHING))
        >>> step.begin(2)  # batches
        >>> for values in torch.tensor([1.0, 3.0]), torch.tensor([5.0]):
        ...     state.batch, state.outputs = (values, 0 * values), weight * values
        ...     scalar = step.scalar(state.objective.given(None, state.outputs, state.batch))
        ...     mean = step.add(scalar)
        ...     scalar.backward()
        >>> step.end()
        >>> state.loss, weight.grad  # (1 + 9 + 25) / 3, and twice that
        (tensor(11.6667), tensor(23.3333))
    """

    def __init__(self, loop: EmbeddedLoop, summed: Callable[[torch.Tensor], torch.Tensor] | None = None) -> None:
        self._loop, self._state, self._summed, self.batches = loop, loop.state, summed, 1
        self._losses: list[Loss] = []
        self._own: Loss | None = None
        self._nominal: float | None = None
        self._rows: float | None = None
        self._shown: Any = 0.0
        self._is_counted = False

    def begin(self, batches: int) -> None:
        """Begin a step of so many batches; of one batch on one process the mean is differentiated."""
        is_alone = batches == 1 and self._summed is None
        self.batches, self._nominal = batches, None if is_alone else batches * self._rows_of_batch()
        self._is_counted = False
        self.again()

    def again(self) -> None:
        """Begin the step again, with the same batches."""
        self._losses, self._shown, self._state.loss_weight = [], 0.0, self._nominal

    def _rows_of_batch(self) -> float:
        """Return about how many rows a batch has: a number that stays, the same on all processes."""
        if self._rows is None:
            loader, state = self._state.train_dataloader, self._state
            sizes = (getattr(loader, name, None) for name in ("total_batch_size", "batch_size"))
            self._rows = float(next((size for size in sizes if type(size) is int), 1))
            if self._summed is not None:
                rows = torch.tensor(self._rows, dtype=torch.float64, device=state.device)
                self._rows = self._summed(rows).item() / state.world_size
        return self._rows

    def scalar(self, given: Any) -> torch.Tensor:
        """Return what is differentiated of what the loss function returned for the batch of State."""
        state = self._state
        if self._nominal is None:
            return state.objective.scalar(given)[0]
        self._own = state.objective.counted(given, state.outputs, state.batch)
        return self._own.sum / self._nominal

    def add(self, taken: torch.Tensor) -> torch.Tensor:
        """Add what is differentiated, as algorithms leave it; return the mean loss of the batch."""
        if self._nominal is None or self._own is None:
            return taken.detach()
        own, self._own = Loss(taken * self._nominal, self._own.count).detach(), None
        self._losses.append(own)
        return own.mean

    def evaluated(self, outputs: Any, batch: Any) -> torch.Tensor:
        """Return the loss of a batch of an evaluation, NaN if it has none."""
        state, objective = self._state, self._state.objective
        if type(objective).eval_loss is Objective.eval_loss and objective.eval_loss_fn is None:  # rows need no count
            return objective.scalar(objective.given(state.model, outputs, batch))[0]
        found = objective.eval_loss(state.model, outputs, batch)
        return torch.tensor(math.nan, device=state.device) if found is None else found.mean

    def end(self) -> None:
        """The gradients are there: scale them, before they are clipped, and let State show the loss of the step.

        Rows and tokens of all processes are those that the loop has loaded.
        """
        state, losses, processes = self._state, self._losses, 1
        if not losses and self._summed is None:
            return
        total = Loss.merged(losses) if losses else Loss(torch.zeros((), device=state.device), 0)
        if self._summed is not None:
            total, processes = self._summed_up(total, self._summed), state.world_size
        if losses and self._nominal is not None:
            factor = factor_of(total, self._nominal * processes)
            if not isinstance(factor, float) or factor != 1:
                scale_gradients(state.optimizers, factor)
            state.loss_weight, state.loss = total.count, total.mean

    def shown(self, loss: torch.Tensor, *, is_last: bool) -> torch.Tensor:
        """Return what a loop that adds up the losses of a step's batches shall add; `end` with the last."""
        before, self._shown = self._shown, self._shown + loss
        if not is_last:
            return loss
        self.end()
        shown: torch.Tensor = self._state.loss - before if self._losses else loss
        return shown

    def _summed_up(self, own: Loss, summed: Callable[[torch.Tensor], torch.Tensor]) -> Loss:
        """Return the loss of all processes; count their rows and tokens, once in a step."""
        loop, count = self._loop, 0 if own.count is None else float(own.count)
        sent = [own.sum.item(), count, loop.samples, loop.tokens]
        total, count, samples, tokens = summed(own.sum.new_tensor(sent, dtype=torch.float64)).tolist()
        if not self._is_counted:
            self._is_counted, loop.samples, loop.tokens = True, round(samples), round(tokens)
        return Loss(own.sum.new_tensor(total), None if own.count is None else count)


def factor_of(total: Loss, divided_by: float) -> float | torch.Tensor:
    """Return what makes gradients of `sum / divided_by` those of the mean: 0 where nothing counts.

    Example:
        >>> factor_of(Loss(torch.tensor(6.0), 8), 4.0)
        0.5
    """
    count = total.count
    if count is None:
        return float(divided_by)
    if isinstance(count, torch.Tensor):  # it need not be there yet
        return torch.where(count > 0, divided_by / count, 0.0)
    return divided_by / count if count else 0.0


def scale_gradients(optimizers: Iterable[torch.optim.Optimizer], factor: float | torch.Tensor) -> None:
    """Multiply all gradients by a number, or a scalar tensor whose value need not be there yet."""
    trained = {p: None for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    dense = [p.grad for p in trained if p.grad is not None and p.grad.layout is torch.strided]
    if dense:
        torch._foreach_mul_(dense, factor)
    for parameter in trained:
        if parameter.grad is not None and parameter.grad.layout is not torch.strided:
            parameter.grad.mul_(factor)
