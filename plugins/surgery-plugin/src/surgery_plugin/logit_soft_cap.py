"""LogitSoftCap: logits that can't leave an interval. The layer, a function for any loop, and the algorithm."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import torch
from torch import nn

from engine_core import AlgorithmMetadata, Event, State
from engine_core.arguments import check_number
from engine_core.errors import ArgumentError

from .models import check_model, check_path, module_at
from .operation import Operation
from .replacement import Policy, replace_modules

__all__ = ["LogitSoftCap", "SoftCappedLinear", "apply_logit_soft_cap"]


class SoftCappedLinear(nn.Linear):
    """Map linearly, and bend each output into (-cap, cap): `cap * tanh(x / cap)`.

    Source: Gemma Team 2024, Gemma 2, arXiv 2408.00118.

    Args:
        linear: gives weight and bias, which stay the same parameters.
        cap: in units of the outputs; far below it they hardly change.

    Example:
        >>> layer = SoftCappedLinear(nn.Linear(4, 8), cap=3)
        >>> layer(1e6 * torch.randn(2, 4)).abs().max().item()
        3.0
    """

    def __init__(self, linear: nn.Linear, cap: float = 30.0) -> None:
        super().__init__(linear.in_features, linear.out_features, bias=linear.bias is not None, device="meta")
        self.weight, self.bias, self.cap = linear.weight, linear.bias, _check_cap(cap)
        self.train(linear.training)

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002  torch's name
        """Return (..., out_features)."""
        return self.cap * torch.tanh(super().forward(input) / self.cap)

    def extra_repr(self) -> str:
        """Return the settings."""
        return f"{super().extra_repr()}, cap={self.cap:g}"


def apply_logit_soft_cap(
    model: nn.Module,
    *,
    cap: float = 30.0,
    layer: str | None = None,
    optimizers: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] = (),
) -> list[str]:
    """Cap the logits of a model softly, `cap * tanh(logits / cap)`, and return the names of the layer that gives them.

    Source: Gemma Team 2024, Gemma 2, arXiv 2408.00118. Weight and bias stay the same parameters under their names. A
    layer that is capped already is left as it is.

    Args:
        cap: what the size of a logit stays below.
        layer: the path of the Linear that gives the logits; None: the last one.
        optimizers: existing ones, or one.

    Raises:
        ArgumentError, ArgumentTypeError: (a ValueError, a TypeError) for impossible arguments, for anything but a
            model, if the last Linear is in one of several blocks of a kind, and for a subclass of `nn.Linear`.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> apply_logit_soft_cap(model)
        ['2']
    """
    check_model(model)
    cap, target = _check_cap(cap), _find_linear(model, check_path("layer", layer))

    def policy(linear: nn.Module, _: str) -> nn.Module | None:
        return SoftCappedLinear(target, cap) if target is linear else None

    policies: dict[type[nn.Module], Policy] = {} if target is None else {nn.Linear: policy}
    return replace_modules(model, policies, optimizers=optimizers)


def _check_cap(cap: object) -> float:
    return check_number("cap", cap, "(0, inf)", "what the size of a logit stays below")


def _find_linear(model: nn.Module, path: str | None) -> nn.Linear | None:
    """Return the Linear that gives the logits, None if there is none, or it is capped."""
    if path is not None:
        found = module_at(model, "layer", path, nn.Linear)
    else:
        linears = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
        if not linears:
            return None
        path, found = linears[-1]
        if block := _block_of(model, path):
            raise ArgumentError(
                f"logit_soft_cap: the last Linear of {type(model).__name__}, {path!r}, is in one of several {block}, "
                "so it does not give the logits: write layer= with the path of the one that does"
            )
    if type(found) not in (nn.Linear, SoftCappedLinear):
        raise ArgumentError(
            f"logit_soft_cap replaces a plain nn.Linear, and {path!r} is a {type(found).__name__}, which may compute "
            "something else: name another with layer=, or leave this algorithm out"
        )
    return None if isinstance(found, SoftCappedLinear) else found


def _block_of(model: nn.Module, path: str) -> str | None:
    """Return the class of a module around this one that has others of its kind beside it; containers don't count."""
    above = model
    for key in path.split(".")[:-1]:
        inner = above.get_submodule(key)
        is_container = isinstance(inner, (nn.Sequential, nn.ModuleList, nn.ModuleDict))
        if not is_container and sum(type(each) is type(inner) for each in above.children()) > 1:
            return type(inner).__name__
        above = inner
    return None


class LogitSoftCap(Operation):
    """Keep the logits of a model within (-cap, cap), by a bend that hardly changes small ones.

    Source: Gemma Team 2024, Gemma 2, arXiv 2408.00118. See `apply_logit_soft_cap`.

    Args:
        cap: what the size of a logit stays below.
        layer: the path of the Linear that gives the logits; None: the last one.

    Example:
        >>> LogitSoftCap(layer="lm_head").cap
        30.0
    """

    metadata: ClassVar[AlgorithmMetadata] = AlgorithmMetadata(
        name="logit_soft_cap",
        description="keep logits within an interval, by a bend that hardly changes small ones",
        events=(Event.INIT,),
        tags=("surgery", "layers", "head"),
        after=("@downsampling", "@channel_attention", "@gating", "@token_mixing"),
        writes=("model.Linear",),
        needs=("surgery",),
    )
    made = (SoftCappedLinear,)

    def __init__(self, cap: float = 30.0, layer: str | None = None) -> None:
        self.cap, self.layer = _check_cap(cap), check_path("layer", layer)

    def operate(self, model: nn.Module, state: State) -> list[str]:
        """Replace the layer."""
        return apply_logit_soft_cap(model, cap=self.cap, layer=self.layer, optimizers=state.optimizers)

    def looked_for(self) -> str:
        """The class that is replaced."""
        return "nn.Linear"
