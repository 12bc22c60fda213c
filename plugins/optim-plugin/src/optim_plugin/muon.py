"""Muon, for convolutions too, and in float32 where bfloat16 is slow."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from engine_core.errors import ArgumentError

_QUINTIC = (3.4445, -4.7750, 2.0315)  # the authors' coefficients
_ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    """Step by the momentum's nearest orthogonal matrix, roughly; a convolution's weight counts as a matrix.

    That matrix is (out, in * height * width). The momentum is Nesterov's, and a step is larger by the root of rows by
    columns for weights with more rows. Source: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/.

    Args:
        params: parameters of two dimensions or more, as torch's optimizers take them.
        lr: learning rate; 0.02 is usual.
        momentum: share of the former momentum in the new one.
        weight_decay: share of each weight that a step with learning rate 1 takes away.
        dtype: in which to make the matrix orthogonal; None: bfloat16 on a GPU, as the authors do, and float32 on a
            CPU, where bfloat16 can take eight times as long.

    Raises:
        ArgumentError: (a ValueError) for a parameter of less than two dimensions, or a negative setting.

    Example:
        >>> net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(8, 2))
        >>> optimizer = Muon([net[0].weight, net[2].weight], lr=0.02)
        >>> net(torch.randn(4, 3, 3, 3)).sum().backward()
        >>> optimizer.step()
        >>> optimizer.state[net[0].weight]["momentum_buffer"].shape
        torch.Size([8, 3, 3, 3])
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.95,
        weight_decay: float = 0.1,
        dtype: torch.dtype | None = None,
    ) -> None:
        settings = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        for name, value in settings.items():
            if not value >= 0:
                raise ArgumentError(f"Muon: {name} is {value!r}; it has to be 0 or more")
        super().__init__(params, settings)
        self.dtype = dtype

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, as torch's optimizers do; each has two dimensions or more."""
        super().add_param_group(param_group)
        for shape in (parameter.shape for parameter in self.param_groups[-1]["params"] if parameter.dim() < 2):
            del self.param_groups[-1]
            raise ArgumentError(
                f"Muon takes parameters of two dimensions or more, not one of shape {tuple(shape)}: give it to "
                "another optimizer, as by_name does with '* ndim<2'"
            )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make a step, with the gradients that there are or that the closure computes; return the closure's loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if (gradient := parameter.grad) is not None:
                    update = self._update(parameter, gradient, group["momentum"])
                    parameter.mul_(1 - float(group["lr"]) * group["weight_decay"])
                    larger = max(1.0, parameter.shape[0] ** 2 / parameter.numel()) ** 0.5  # the root of rows by columns
                    parameter.add_(update, alpha=-float(group["lr"]) * larger)
        return loss

    def _update(self, parameter: torch.Tensor, gradient: torch.Tensor, share: float) -> torch.Tensor:
        state = self.state[parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        state["momentum_buffer"].lerp_(gradient, 1 - share)
        matrix = gradient.lerp(state["momentum_buffer"], share).flatten(1)
        dtype = self.dtype or (torch.bfloat16 if matrix.is_cuda else torch.float32)
        return orthogonal(matrix.to(dtype)).to(parameter.dtype).reshape(parameter.shape)


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """Return roughly the nearest orthogonal matrix: singular values become about 1, between 0.7 and 1.2.

    Source: the Newton-Schulz iteration with the coefficients of Jordan et al. 2024.

    Args:
        matrix: of shape (rows, columns).
    """
    a, b, c = _QUINTIC
    rows, columns = matrix.shape
    wide = matrix if rows <= columns else matrix.T
    wide = wide / wide.norm().clamp(min=1e-7)
    for _ in range(_ITERATIONS):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return wide if rows <= columns else wide.T
