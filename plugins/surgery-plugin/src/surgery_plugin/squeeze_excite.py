"""SqueezeExcite: gates for the channels after convolutions. A function for any loop, and the algorithm."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import nn

from engine_core import AlgorithmMetadata, Event, State
from engine_core.arguments import check_whole
from engine_core.randomness import private_unless

from .excitation import SqueezeExciteConv2d, check_latent_channels
from .models import check_model
from .operation import Operation
from .replacement import Policy, replace_modules

__all__ = ["SqueezeExcite", "apply_squeeze_excite"]

_NAME = "squeeze_excite"


def apply_squeeze_excite(
    model: nn.Module,
    *,
    min_channels: int = 64,
    latent_channels: float = 64,
    optimizers: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] = (),
    generator: torch.Generator | None = None,
) -> list[str]:
    """Put squeeze-and-excitation after convolutions, and return the names of those that got it.

    Source: Hu et al. 2018, Squeeze-and-Excitation Networks, arXiv 1709.01507; see `SqueezeExcite2d`. Grouped and
    depthwise convolutions get it like all others. A convolution that has it already is skipped.

    Args:
        min_channels: convolutions with fewer input or output channels are skipped.
        latent_channels: the size of the hidden layer, or below 1 a fraction of the output channels.
        optimizers: existing ones, or one; they get the new parameters.
        generator: on the CPU, for the new weights; None: a private one, seeded by the system.

    Raises:
        ArgumentError, ArgumentTypeError: (a ValueError, a TypeError) for impossible numbers, for anything but a model
            or a generator, and if the model itself is such a convolution.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3))
        >>> apply_squeeze_excite(model, latent_channels=0.125)
        ['2']
        >>> model[2].squeeze_excite.squeeze.out_features
        8
    """
    check_model(model)
    _check_min_channels(min_channels)
    check_latent_channels(latent_channels)
    own = private_unless(generator)
    excited = {module.conv for module in model.modules() if isinstance(module, SqueezeExciteConv2d)}

    def policy(conv: Any, _: str) -> nn.Module | None:
        if conv in excited or min(conv.in_channels, conv.out_channels) < min_channels:
            return None
        return SqueezeExciteConv2d(conv, latent_channels, generator=own)

    policies: dict[type[nn.Module], Policy] = {nn.Conv2d: policy}
    return replace_modules(model, policies, optimizers=optimizers)


def _check_min_channels(min_channels: object) -> int:
    return check_whole("min_channels", min_channels, "[1, inf)", "input and output channels")


class SqueezeExcite(Operation):
    """Let the net weight its channels by their content, after each convolution with enough channels.

    Source: Hu et al. 2018, Squeeze-and-Excitation Networks, arXiv 1709.01507. See `apply_squeeze_excite`.

    Args:
        min_channels: convolutions with fewer input or output channels are skipped.
        latent_channels: the size of the hidden layer, or below 1 a fraction of the output channels.

    Example:
        >>> SqueezeExcite(latent_channels=0.125).min_channels
        64
    """

    metadata: ClassVar[AlgorithmMetadata] = AlgorithmMetadata(
        name=_NAME,
        description="weight the channels after convolutions by their content",
        events=(Event.INIT,),
        tags=("surgery", "layers", "channel_attention"),
        before=("@gating",),
        writes=("model", "optimizers"),
        needs=("surgery",),
    )
    made = (SqueezeExciteConv2d,)

    def __init__(self, min_channels: int = 64, latent_channels: float = 64) -> None:
        self.min_channels = _check_min_channels(min_channels)
        self.latent_channels = check_latent_channels(latent_channels)

    def operate(self, model: nn.Module, state: State) -> list[str]:
        """Wrap the convolutions of the model, with weights drawn from the seed of the run."""
        return apply_squeeze_excite(
            model,
            min_channels=self.min_channels,
            latent_channels=self.latent_channels,
            optimizers=state.optimizers,
            generator=torch.Generator().manual_seed(state.derive_seed(_NAME, shared=True)),
        )

    def looked_for(self) -> str:
        """Convolutions with enough channels."""
        return f"Conv2d of {self.min_channels} or more input and output channels"
