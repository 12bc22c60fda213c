"""The gated layer that replaces a Linear and its activation, and the search for such pairs."""
# ruff: noqa: SLF001  the public ways through a module hide that one child is in several places

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import nn

from engine_core.errors import ArgumentError, ArgumentTypeError, did_you_mean
from engine_core.randomness import private_unless

from .models import check_model
from .replacement import replace_modules

__all__ = ["Activation", "GatedLinear", "apply_gated_linear_units", "check_activation"]

Activation = Callable[[torch.Tensor], torch.Tensor]

_NAMED: dict[str, type[nn.Module]] = {
    "gelu": nn.GELU,
    "identity": nn.Identity,
    "relu": nn.ReLU,
    "sigmoid": nn.Sigmoid,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}

_COUNTED = (
    *(nn.CELU, nn.ELU, nn.GELU, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.LeakyReLU, nn.LogSigmoid, nn.Mish),
    *(nn.ReLU, nn.ReLU6, nn.SELU, nn.SiLU, nn.Sigmoid, nn.Softplus, nn.Softsign, nn.Tanh),
)
"""Torch's activations that have no parameters, draw nothing, and work elementwise."""


class GatedLinear(nn.Module):
    """Multiply an activated linear map of the input by a second linear map: `activation(linear(x)) * gate(x)`.

    Source: Shazeer 2020, GLU Variants Improve Transformer, arXiv 2002.05202.

    Args:
        linear: (..., in_features) to (..., out_features).
        activation: a module, which becomes a child, or a function.
        gate: the second linear map, of the same shape.

    Example:
        >>> gated = GatedLinear(nn.Linear(4, 8), nn.ReLU(), nn.Linear(4, 8))
        >>> gated(torch.randn(2, 4)).shape
        torch.Size([2, 8])
    """

    def __init__(self, linear: nn.Linear, activation: Activation, gate: nn.Linear) -> None:
        super().__init__()
        self.linear = linear
        self.gate = gate
        self.activation = activation
        self.in_features = linear.in_features
        self.out_features = linear.out_features

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (..., out_features)."""
        gates: torch.Tensor = self.gate(x)
        return self.activation(self.linear(x)) * gates

    def extra_repr(self) -> str:
        """Return the name of the activation if it is a function; a module is shown as a child."""
        return "" if isinstance(self.activation, nn.Module) else f"activation={_name_of(self.activation)}"


class _Run(NamedTuple):
    """A Linear, the activation that follows it, and where that activation is."""

    linear: nn.Linear
    activation: Activation
    home: nn.Module
    key: str


def apply_gated_linear_units(
    model: nn.Module,
    activation: str | Activation | None = None,
    *,
    optimizers: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] = (),
    generator: torch.Generator | None = None,
) -> list[str]:
    """Gate the feed-forward parts of a model in place, and return the names of the layers that were replaced.

    Source: Shazeer 2020, GLU Variants Improve Transformer, arXiv 2002.05202: `(act(x W) * (x V)) W2` instead of
    `act(x W) W2`. W and W2 are the existing layers; V is new, has W's shape, and a bias if W has one.

    Args:
        activation: None keeps the existing one; otherwise `gelu`, `identity`, `relu`, `sigmoid`, `silu`, `tanh`, or a
            function or module without parameters.
        optimizers: those that hold the model's parameters already, or one; they get the new parameters.
        generator: draws the new weights; None: a private one, seeded by the system.

    Raises:
        ValueError, TypeError: for any other activation, and for anything but a model or a generator.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2))
        >>> apply_gated_linear_units(model)
        ['0']
        >>> [type(layer).__name__ for layer in model]
        ['GatedLinear', 'Identity', 'Dropout', 'Linear']
    """
    check_model(model)
    chosen = check_activation(activation)
    own = private_unless(generator)
    runs = {id(run.linear): run for run in _find_runs(model)}

    def policy(linear: nn.Module, _: str) -> nn.Module | None:
        run = runs.get(id(linear))
        return run and GatedLinear(run.linear, chosen or run.activation, _new_gate(run.linear, own))

    replaced = replace_modules(model, {nn.Linear: policy}, optimizers=optimizers)
    for run in runs.values():
        setattr(run.home, run.key, nn.Identity())
    return replaced


def check_activation(activation: object) -> Activation | None:
    """Return the function that an argument means, None to keep the existing one.

    Raises:
        ArgumentError: (a ValueError) for an unknown name, and for a module with parameters.
        ArgumentTypeError: (a TypeError) for something that can't be called with a tensor.
    """
    if activation is None:
        return None
    if isinstance(activation, str):
        if activation not in _NAMED:
            raise ArgumentError(
                f"activation={activation!r} has to be one of {', '.join(_NAMED)} or a function"
                f"{did_you_mean(activation, _NAMED)}"
            )
        return _NAMED[activation]()
    if isinstance(activation, type) or not callable(activation):
        raise ArgumentTypeError(f"activation={activation!r} has to be a name, a function or a module, not a class")
    if isinstance(activation, nn.Module) and next(activation.parameters(), None) is not None:
        raise ArgumentError(f"activation={activation!r} has parameters, which all layers would share: give one without")
    return activation


def _find_runs(model: nn.Module) -> list[_Run]:
    """Return what can be gated, but no Linear used in several places, as not all of them may be such runs."""
    found = []
    places = Counter(id(child) for parent in model.modules() for child in parent._modules.values())
    for module in model.modules():
        if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
            found += _runs_of(module)
        elif isinstance(module, nn.TransformerEncoderLayer) and _is_plain(module):
            found.append(_Run(module.linear1, module.activation, module, "activation"))
    return [run for run in found if type(run.linear) is nn.Linear and places[id(run.linear)] == 1]


def _runs_of(sequential: nn.Sequential) -> list[_Run]:
    found = []
    children = list(sequential._modules.items())
    for (_, linear), (key, activation), *rest in (children[place:] for place in range(len(children) - 2)):
        following = next((child for _, child in rest if not isinstance(child, nn.Dropout)), None)
        if isinstance(linear, nn.Linear) and isinstance(following, nn.Linear) and type(activation) in _COUNTED:
            found.append(_Run(linear, activation, sequential, key))
    return found


def _is_plain(layer: nn.TransformerEncoderLayer) -> bool:
    """Does the layer compute what torch's own does, in particular its feed-forward?"""
    torchs = nn.TransformerEncoderLayer
    return type(layer).forward is torchs.forward and type(layer)._ff_block is torchs._ff_block


def _new_gate(linear: nn.Linear, generator: torch.Generator) -> nn.Linear:
    """Return a Linear like the given one, initialised as torch initialises a Linear, but from the generator."""
    like = linear.weight
    gate: nn.Linear = torch.nn.utils.skip_init(  # type: ignore[no-untyped-call]
        nn.Linear,
        linear.in_features,
        linear.out_features,
        bias=linear.bias is not None,
        device=like.device,
        dtype=like.dtype,
    )
    bound = 1 / math.sqrt(max(1, linear.in_features))
    with torch.no_grad():
        for parameter in gate.parameters():
            drawn = torch.empty(parameter.shape, device=generator.device, dtype=torch.float32)
            parameter.copy_(drawn.uniform_(-bound, bound, generator=generator))
    return gate


def _name_of(function: Activation) -> str:
    return getattr(function, "__name__", type(function).__name__)
