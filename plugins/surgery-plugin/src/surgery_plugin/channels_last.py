"""ChannelsLast: a model's weights in the memory format that convolutions prefer. A function and the algorithm."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import chain
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from engine_core import AlgorithmMetadata, Event, Logger, State
from engine_core.errors import ArgumentError

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

    See `apply_channels_last`, and torch's tutorial *Channels Last Memory Format in PyTorch*. On a CPU, torch crashes in
    the backward pass of a GroupNorm that trains on an input in this format that needs no gradient. From FIT_START to
    FIT_END, one that gets such an input is refused.

    Example:
        >>> ChannelsLast().metadata.name
        'channels_last'
    """

    metadata: ClassVar[AlgorithmMetadata] = AlgorithmMetadata(
        name="channels_last",
        description="lay out the weights of convolutions with their channels last",
        events=(Event.INIT, Event.FIT_START, Event.FIT_END),
        tags=("surgery", "memory_format", "compile"),
        after=("@layers", "@blocks"),
        around=("@weight_averaging",),
        writes=("model.layout", "optimizers"),
        needs=("whole_weights", "surgery"),  # FSDP refuses weights in this format, a NotImplementedError of torch
    )

    def __init__(self) -> None:
        self._guards: list[Any] = []

    def match(self, event: Event, state: State) -> bool:
        """INIT, and FIT_START and FIT_END if the model has a GroupNorm, or had one."""
        if event is Event.INIT:
            return True
        return event in (Event.FIT_START, Event.FIT_END) and bool(self._guards or _group_norms(state.model))

    def apply(self, event: Event, state: State, logger: Logger | None = None) -> None:
        """Lay out the weights at INIT; while the model trains, refuse what would crash the process."""
        if event is Event.INIT:
            super().apply(event, state, logger)
            return
        while self._guards:
            self._guards.pop().remove()
        if event is Event.FIT_START:
            for name, norm in _group_norms(state.model).items():
                self._guards.append(norm.register_forward_pre_hook(partial(_refuse_input, name)))

    def operate(self, model: nn.Module, state: State) -> list[str]:
        """Lay out the weights of the model."""
        return apply_channels_last(model, optimizers=state.optimizers)

    def looked_for(self) -> str:
        """Parameters and buffers with four dimensions."""
        return "parameter or buffer with 4 dimensions"


def _group_norms(model: Any) -> dict[str, nn.Module]:
    named = model.named_modules() if isinstance(model, nn.Module) else ()
    return {name: module for name, module in named if isinstance(module, nn.GroupNorm)}


def _refuse_input(name: str, norm: nn.Module, inputs: tuple[Any, ...]) -> None:
    """Raise for an input with which the backward pass would crash; a pre-hook of a GroupNorm."""
    x = inputs[0] if inputs else None
    if not isinstance(x, torch.Tensor) or x.requires_grad or not torch.is_grad_enabled() or x.device.type != "cpu":
        return
    is_image, trains = x.dim() in (4, 5) and x.stride(1) == 1, any(p.requires_grad for p in norm.parameters())
    if is_image and trains and x.stride() != x.new_empty(x.shape, device="meta").stride():
        raise ArgumentError(
            f"channels_last: the GroupNorm {name!r} trains, and its input needs no gradient; on a CPU, torch crashes "
            f"in the backward pass of such a norm in this memory format: freeze {name!r} too, train a layer before it, "
            "or leave out channels_last"
        )
