"""BlurPool: the layers of a model that subsample blur too. A function for any loop, and the algorithm."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import nn

from engine_core import AlgorithmMetadata, Event, State
from engine_core.arguments import check_flag, check_whole
from engine_core.errors import ArgumentError

from .blur import BlurConv2d, BlurMaxPool2d
from .operation import Operation
from .replacement import Policy, replace_modules

__all__ = ["BlurPool", "apply_blurpool"]


def apply_blurpool(
    model: nn.Module,
    *,
    replace_convs: bool = True,
    replace_maxpools: bool = True,
    min_channels: int = 16,
    blur_first: bool = True,
    optimizers: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] = (),
) -> list[str]:
    """Make strided convolutions and max-pools blur before they subsample, and return the names of those replaced.

    Source: Zhang 2019, Making Convolutional Networks Shift-Invariant Again, arXiv 1904.11486. Parameters, their names
    and output sizes do not change. Not replaced are subclasses of `nn.Conv2d` and `nn.MaxPool2d`, which may compute
    something else, convolutions whose weight is computed from other parameters, as by `weight_norm`, and max-pools that
    return indices.

    Args:
        min_channels: convolutions with fewer input channels are not replaced.
        blur_first: blur what a convolution gets; else what it gives at each place, as in the paper, which costs more.
        optimizers: existing ones, or one.

    Raises:
        ArgumentError, ArgumentTypeError: (a ValueError, a TypeError) for invalid arguments, and if the model
            itself is such a layer.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(), nn.MaxPool2d(2))
        >>> apply_blurpool(model)
        ['0', '2']
    """
    _check(replace_convs, replace_maxpools, min_channels, blur_first)

    def of_conv(conv: Any, _: str) -> nn.Module | None:
        return BlurConv2d.from_conv(conv, blur_first=blur_first) if _blurs_conv(conv, min_channels) else None

    def of_pool(pool: Any, _: str) -> nn.Module | None:
        return BlurMaxPool2d.from_pool(pool) if _blurs_pool(pool) else None

    policies: dict[type[nn.Module], Policy] = {}
    if replace_convs:
        policies[nn.Conv2d] = of_conv
    if replace_maxpools:
        policies[nn.MaxPool2d] = of_pool
    return replace_modules(model, policies, optimizers=optimizers)


def _check(replace_convs: object, replace_maxpools: object, min_channels: object, blur_first: object) -> None:
    """Raise unless these leave something to replace."""
    wanted = check_flag("replace_convs", replace_convs), check_flag("replace_maxpools", replace_maxpools)
    check_flag("blur_first", blur_first)
    check_whole("min_channels", min_channels, "[1, inf)", "input channels")
    if not any(wanted):
        raise ArgumentError("replace_convs=False and replace_maxpools=False leave nothing to replace: set one")


def _blurs_conv(conv: nn.Conv2d, min_channels: int) -> bool:
    if type(conv) is not nn.Conv2d or max(conv.stride) == 1 or conv.in_channels < min_channels:
        return False
    return {name for name, _ in conv.named_parameters()} <= {"weight", "bias"} and not list(conv.buffers())


def _blurs_pool(pool: nn.MaxPool2d) -> bool:
    return type(pool) is nn.MaxPool2d and not pool.return_indices and pool.stride not in (1, (1, 1), [1, 1])


class BlurPool(Operation):
    """Blur before each subsampling, so that outputs change less when inputs are shifted.

    Source: Zhang 2019, Making Convolutional Networks Shift-Invariant Again, arXiv 1904.11486. See `apply_blurpool`.

    Args:
        replace_convs: blur at convolutions with a stride?
        replace_maxpools: blur after max-pools with a stride?
        min_channels: convolutions with fewer input channels are not replaced.
        blur_first: blur what a convolution gets; else what it gives at each place, as in the paper, which costs more.

    Example:
        >>> BlurPool(replace_maxpools=False).min_channels
        16
    """

    metadata: ClassVar[AlgorithmMetadata] = AlgorithmMetadata(
        name="blurpool",
        description="blur before each subsampling",
        events=(Event.INIT,),
        tags=("surgery", "layers", "downsampling"),
        before=("@gating", "@channel_attention"),
        writes=("model",),
        needs=("surgery",),
    )
    made = (BlurConv2d, BlurMaxPool2d)

    def __init__(
        self,
        replace_convs: bool = True,  # noqa: FBT001, FBT002  the reference has these, in this order
        replace_maxpools: bool = True,  # noqa: FBT001, FBT002
        min_channels: int = 16,
        *,
        blur_first: bool = True,
    ) -> None:
        _check(replace_convs, replace_maxpools, min_channels, blur_first)
        self.replace_convs = replace_convs
        self.replace_maxpools = replace_maxpools
        self.min_channels = min_channels
        self.blur_first = blur_first

    def operate(self, model: nn.Module, state: State) -> list[str]:
        """Replace the layers of the model."""
        return apply_blurpool(
            model,
            replace_convs=self.replace_convs,
            replace_maxpools=self.replace_maxpools,
            min_channels=self.min_channels,
            blur_first=self.blur_first,
            optimizers=state.optimizers,
        )

    def looked_for(self) -> str:
        """Layers that subsample, of the kinds to replace."""
        convs = f"Conv2d of {self.min_channels} or more input channels with a stride"
        kinds = ((convs, self.replace_convs), ("MaxPool2d with a stride", self.replace_maxpools))
        return " or ".join(kind for kind, wanted in kinds if wanted)
