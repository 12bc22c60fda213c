"""A step that is made of several batches, or on several processes: its gradients are those of what its losses count."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..objective import Loss
from ..state import State


class Accumulated:
    """The losses of a step. Sums over a nominal number are differentiated; after the last, one factor makes the mean.

    Args:
        state: its objective counts, and it gets the loss of the step.
        summed: returns the sum of a tensor over the processes, whose gradients are averaged; None: there is one.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(()))
        >>> state = State(loss_fn=torch.nn.MSELoss(), optimizers=[torch.optim.SGD([weight], lr=0.1)])
        >>> step = Accumulated(state)
        >>> step.begin(2)
        >>> for values in torch.tensor([1.0, 3.0]), torch.tensor([5.0]):
        ...     state.batch, state.outputs = (values, 0 * values), weight * values
        ...     scalar = step.scalar(state.objective.given(None, state.outputs, state.batch))
        ...     step.add(scalar)
        ...     scalar.backward()
        >>> step.end()
        {}
        >>> state.loss, weight.grad  # (1 + 9 + 25) / 3, and twice that
        (tensor(11.6667), tensor(23.3333))
    """

    def __init__(self, state: State, summed: Callable[[torch.Tensor], torch.Tensor] | None = None) -> None:
        self._state, self._summed = state, summed
        self._losses: list[Loss] = []
        self._own: Loss | None = None
        self._nominal: float | None = None

    def begin(self, nominal: float | None) -> None:
        """Begin a step.

        Args:
            nominal: about the rows of the step on one process, the same on all; None: one batch on one process, whose
                mean is differentiated.
        """
        self._losses, self._nominal, self._state.loss_weight = [], nominal, nominal

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

    def end(self, samples: int = 0, tokens: int = 0) -> dict[str, int]:
        """The gradients are there: scale them, before they are clipped, and let State show the loss of the step.

        Args:
            samples, tokens: that this process has loaded for the step.

        Returns:
            What `EmbeddedLoop.end_step` needs to count those of all processes.
        """
        state, losses, processes = self._state, self._losses, 1 if self._summed is None else self._state.world_size
        loaded = dict[str, int]()
        total = Loss.merged(losses) if losses else Loss(torch.zeros((), device=state.device), 0)
        if self._summed is not None:
            count = 0 if total.count is None else float(total.count)
            own = torch.tensor([total.sum.item(), count, samples, tokens], dtype=torch.float64, device=total.sum.device)
            both = self._summed(own).tolist()
            total = Loss(total.sum.new_tensor(both[0]), None if total.count is None else both[1])
            loaded = {"samples": round(both[2]), "tokens": round(both[3])}
        if losses and self._nominal is not None:
            factor = factor_of(total, self._nominal * processes)
            if not isinstance(factor, float) or factor != 1:
                scale_gradients(state.optimizers, factor)
            state.loss_weight, state.loss = total.count, total.mean
        return loaded


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
        torch._foreach_mul_(dense, factor)  # noqa: SLF001  as torch's own clipping does
    for parameter in trained:
        if parameter.grad is not None and parameter.grad.layout is not torch.strided:
            parameter.grad.mul_(factor)
