"""The gradients of the parameters that are trained: which there are, and their norm."""
# ruff: noqa: SLF001  torch.optim's own kernels for many tensors at once have no public name

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import nn

from engine_core import State
from engine_core.errors import ArgumentError

__all__ = ["gradient_norm", "trained_parameters", "with_gradient"]


def trained_parameters(state: State) -> Iterator[nn.Parameter]:
    """Yield the parameters of the optimizers, or of the model if there are none.

    Nothing resets the gradients of others: they would add up from step to step, and the norm with them.
    """
    if not state.optimizers:
        yield from () if state.model is None else state.model.parameters()
    for optimizer in state.optimizers:
        for group in optimizer.param_groups:
            yield from group["params"]


def with_gradient(parameters: Iterable[nn.Parameter]) -> list[tuple[nn.Parameter, torch.Tensor]]:
    """Return those that are not frozen and have a gradient, each once, with their gradients.

    Raises:
        ArgumentError: (a ValueError) for a sparse gradient.
    """
    unique = {id(parameter): parameter for parameter in parameters}
    weights = [(p, p.grad) for p in unique.values() if p.requires_grad and p.grad is not None]
    for parameter, gradient in weights:
        if gradient.layout is not torch.strided:
            raise ArgumentError(
                f"a parameter of shape {tuple(parameter.shape)} has a sparse gradient, which has no norm by rows and "
                "can't be added to the weight in place: make its embedding with sparse=False"
            )
    return weights


@torch.no_grad()
def gradient_norm(gradients: list[torch.Tensor]) -> float:
    """Return the L2 norm over all gradients; the host waits for it.

    Example:
        >>> gradient_norm([torch.tensor([3.0]), torch.tensor([[4.0]])])
        5.0
    """
    if not gradients:
        return 0.0
    device = gradients[0].device
    wide = [g.float() if g.dtype in (torch.half, torch.bfloat16) else g for g in gradients]
    norms = [norm.to(device) for norm in torch._foreach_norm(wide)]
    return float(torch.linalg.vector_norm(torch.stack(norms)).item())
