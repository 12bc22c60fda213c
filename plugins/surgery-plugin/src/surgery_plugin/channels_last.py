"""ChannelsLast: a model's weights in the memory format that convolutions prefer. A function and the algorithm."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from engine_core import AlgorithmMetadata, Event, State

from .models import check_model
from .operation import Operation

__all__ = ["ChannelsLast", "apply_channels_last"]


def apply_channels_last(
    model: nn.Module, *, optimizers: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] = ()
) -> list[str]:
    """Lay out each 4-D parameter and buffer of a model as `torch.channels_last`, and return their names.

    Parameters stay the same objects with the same values. Inputs need not be converted: a convolution whose weight is
    in this format gives outputs in it, and what follows keeps it.

    Args:
        optimizers: those that have made steps already, or one. What they hold for a parameter, such as its momentum,
            gets the new format too, as does its gradient: a fused optimizer reads all of them in memory order, and
            would mix them up.

    Raises:
        ArgumentTypeError: (a TypeError) for anything but a model.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 8, kernel_size=5), nn.BatchNorm2d(8))
        >>> apply_channels_last(model), model[0].weight.stride()
        (['0.weight'], (75, 1, 15, 3))
    """
    check_model(model)
    names = []
    made = [optimizers] if isinstance(optimizers, torch.optim.Optimizer) else list(optimizers)
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        if not is_lazy(tensor) and tensor.dim() == 4:
            tensor.data = _laid_out(tensor.data)
            if tensor.grad is not None:
                tensor.grad = _laid_out(tensor.grad)
            for optimizer in made:
                _lay_out_state(optimizer.state.get(tensor, {}), tensor.shape)
            names.append(name)
    return names


def _laid_out(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(memory_format=torch.channels_last)


def _lay_out_state(held: dict[str, Any], shape: torch.Size) -> None:
    """Lay out what an optimizer holds for each value of a parameter."""
    for key, value in held.items():
        if isinstance(value, torch.Tensor) and value.shape == shape:
            held[key] = _laid_out(value)


class ChannelsLast(Operation):
    """Keep the weights of convolutions in the memory format `torch.channels_last`.

    See `apply_channels_last`, and torch's tutorial *Channels Last Memory Format in PyTorch*.

    Example:
        >>> ChannelsLast().metadata.name
        'channels_last'
    """

    metadata: ClassVar[AlgorithmMetadata] = AlgorithmMetadata(
        name="channels_last",
        description="lay out the weights of convolutions with their channels last",
        events=(Event.INIT,),
        tags=("surgery", "memory_format", "compile"),
        after=("@layers", "@blocks"),
        writes=("model", "optimizers"),
    )

    def operate(self, model: nn.Module, state: State) -> list[str]:
        """Lay out the weights of the model."""
        return apply_channels_last(model, optimizers=state.optimizers)

    def looked_for(self) -> str:
        """Parameters and buffers with four dimensions."""
        return "parameter or buffer with 4 dimensions"
