"""torch's Muon for convolutions too: weights of more than two dimensions are trained as matrices.

The model's parameters and what the optimizer keeps for them have their own shapes all the while, except in a step.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from engine_core.errors import ArgumentError


def flat_muon(params: Iterable[Any], lr: float = 1e-3, **settings: Any) -> torch.optim.Optimizer:
    """Return a `torch.optim.Muon` that takes weights of convolutions as matrices, as (out, in * height * width).

    That is what its authors do with them: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/.

    Args:
        params: parameters of two dimensions or more, as torch's optimizers take them.
        lr: learning rate; with the default `adjust_lr_fn`, 0.02 is usual.
        settings: those of `torch.optim.Muon`, as `momentum` and `weight_decay`.

    Raises:
        ArgumentError: (a ValueError) for a parameter of less than two dimensions, and before torch 2.9, which brought
            Muon.

    Example:
        >>> net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(8, 2))
        >>> optimizer = flat_muon([net[0].weight, net[2].weight], lr=0.02)
        >>> net(torch.randn(4, 3, 3, 3)).sum().backward()
        >>> optimizer.step()
        >>> optimizer.state[net[0].weight]["momentum_buffer"].shape
        torch.Size([8, 3, 3, 3])
    """
    muon = getattr(torch.optim, "Muon", None)
    if muon is None:
        raise ArgumentError(f"flat_muon needs torch.optim.Muon, which torch has since 2.9; this is {torch.__version__}")
    own: dict[str, Any] = {"__module__": __name__, "own_step": inspect.unwrap(muon.step)}
    return type("FlatMuon", (_Flattening, muon), own)(params, lr=lr, **settings)  # type: ignore[no-any-return]


class _Flattening(torch.optim.Optimizer):
    """An optimizer of matrices, the next class, made one of matrices and of what can be flattened to such."""

    own_step: Callable[..., Any]  # without the wrapper that calls hooks, which torch puts around ours too

    def __init__(self, params: Iterable[Any], **settings: Any) -> None:
        given = torch.optim.Optimizer(params, {}).param_groups
        for shape in (parameter.shape for group in given for parameter in group["params"] if parameter.dim() < 2):
            raise ArgumentError(
                f"flat_muon takes parameters of two dimensions or more, not one of shape {tuple(shape)}: give it to "
                "another optimizer, as by_name does with '* ndim<2'"
            )
        flat = [{**group, "params": [_flat(parameter) for parameter in group["params"]]} for group in given]
        for group in flat:
            group.pop("param_names", None)
        make: Any = super().__init__
        make(flat, **settings)
        for own, group in zip(self.param_groups, given, strict=True):
            own.update(group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make a step, with the gradients that there are or that the closure computes; return the closure's loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with self._flattened():
            self.own_step()
        return loss

    @contextmanager
    def _flattened(self) -> Iterator[None]:
        """Within the block, have matrices in place of what has more dimensions, with their gradients and states."""
        whole = [group["params"] for group in self.param_groups]
        pairs = {p: _flat(p) for parameters in whole for p in parameters if p.dim() > 2 and p.grad is not None}
        for parameter, matrix in pairs.items():
            matrix.grad = parameter.grad.flatten(1)
            state = self.state.get(parameter, {})
            self.state[matrix] = {name: _like(value, parameter, matrix) for name, value in state.items()}
        for group in self.param_groups:
            group["params"] = [pairs.get(parameter, parameter) for parameter in group["params"]]
        try:
            yield
        finally:
            for group, parameters in zip(self.param_groups, whole, strict=True):
                group["params"] = parameters
            for parameter, matrix in pairs.items():
                state = self.state.pop(matrix)
                self.state[parameter] = {name: _like(value, matrix, parameter) for name, value in state.items()}
                if not parameter.is_contiguous():  # then the matrix is a copy, as with channels_last
                    parameter.copy_(matrix.reshape(parameter.shape))


def _flat(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.detach().flatten(1) if parameter.dim() > 2 else parameter


def _like(value: Any, owner: torch.Tensor, other: torch.Tensor) -> Any:
    """Return what is kept for a parameter, in the shape of another, if it has the shape of its own."""
    has_shape = isinstance(value, torch.Tensor) and value.shape == owner.shape
    return value.reshape(other.shape) if has_shape else value
