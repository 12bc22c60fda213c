"""Which layers of a model are frozen, and when. Independent of the engine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from engine_core.arguments import check_number
from engine_core.batch import map_batch
from engine_core.errors import ArgumentError

from .weights import bare, own_parameters, plain_name

__all__ = [
    "check_level",
    "check_start",
    "count_frozen",
    "freeze_first",
    "freeze_layers",
    "freezing_schedule",
    "has_gradient",
    "layers_behind",
    "trainable_layers",
]


def check_start(start: object) -> float:
    """Return when freezing starts, if it is valid."""
    return check_number("start", start, "[0, 1)", "the fraction of training after which layers are frozen")


def check_level(level: object) -> float:
    """Return how much is frozen at the end, if it is valid."""
    return check_number("level", level, "(0, 1]", "the fraction of layers that is frozen at the end")


def freezing_schedule(done: float, start: float = 0.5, level: float = 1.0) -> float:
    """Return the fraction of layers that is frozen: 0 until `start`, then linear up to `level` at the end.

    Args:
        done: the fraction of training that is done.

    Raises:
        ArgumentError: (a ValueError) for a `start` outside [0, 1) or a `level` outside (0, 1].

    Example:
        >>> [freezing_schedule(done, start=0.5, level=0.8) for done in (0.25, 0.5, 0.75, 1.0)]
        [0.0, 0.0, 0.4, 0.8]
    """
    check_number("done", done, "[0, inf)", "the fraction of training that is done")
    start, level = check_start(start), check_level(level)
    if done <= start:
        return 0.0
    return level * (min(done, 1.0) - start) / (1.0 - start)


def count_frozen(fraction: float, layers: int) -> int:
    """Return how many of the layers are frozen: rounded down, and never the last one.

    Example:
        >>> [count_frozen(fraction, 10) for fraction in (0.0, 0.29, 0.3, 1.0)]
        [0, 2, 3, 9]
    """
    return max(0, min(math.floor(round(fraction * layers, 9)), layers - 1))


def trainable_layers(model: nn.Module) -> list[str]:
    """Return the names of the layers that can be frozen, in the order of their definition.

    A layer is a module with its own parameters, at least one of which requires a gradient. A module used in several
    places counts at the last one. If there are gradients, layers after the last one that has any are not part of the
    loss, and do not count: with all others frozen there would be nothing to train.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2), nn.Linear(2, 1))
        >>> _ = model[0].requires_grad_(False)
        >>> trainable_layers(model)
        ['2', '3']
    """
    layers = [(name, has_gradient(parameters)) for name, parameters in _trained(model).items()]
    last = max((i for i, (_, has_one) in enumerate(layers) if has_one), default=len(layers))
    return [name for name, _ in layers[: last + 1]]


def layers_behind(model: nn.Module, name: str) -> dict[str, list[nn.Parameter]]:
    """Return the trainable layers after the one with this name, each with its trainable parameters.

    Example:
        >>> list(layers_behind(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)), "0"))
        ['2']
    """
    names = list(_layers(model))
    behind = set(names[names.index(name) + 1 :]) if name in names else set()
    return {layer: parameters for layer, parameters in _trained(model).items() if layer in behind}


def has_gradient(parameters: Iterable[nn.Parameter]) -> bool:
    """Does one of them have a gradient?"""
    return any(parameter.grad is not None for parameter in parameters)


def freeze_layers(model: nn.Module, fraction: float, layers: Sequence[str] | None = None) -> list[str]:
    """Freeze the given fraction of the layers of `model`, from the front, and return their names.

    Source: Brock et al. 2017, FreezeOut, arXiv 1706.04983. Frozen parameters require no gradient and have none, so
    optimizers skip them. A parameter that several layers share is frozen with the last of them. Nothing is ever
    unfrozen. On a CPU, if weights are in `torch.channels_last`, a GroupNorm is frozen with the layer before it: torch
    crashes in the backward pass of a GroupNorm that trains on an input in this format that needs no gradient. Each
    gets a forward pre-hook that makes such an input contiguous, since a model may use its layers in another order.

    Args:
        fraction: of the layers, rounded down, within [0, 1]; the last one is never frozen.
        layers: what `trainable_layers` returned before anything was frozen, for a growing fraction; None: call it now.

    Raises:
        ArgumentError: (a ValueError) for a fraction out of range, or a layer that the model does not have.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
        >>> freeze_layers(model, 0.5)
        ['0']
        >>> [parameter.requires_grad for parameter in model.parameters()]
        [False, False, True, True]
    """
    check_number("fraction", fraction, "[0, 1]", "the fraction of layers that is frozen")
    chosen = trainable_layers(model) if layers is None else layers
    return freeze_first(model, count_frozen(fraction, len(chosen)), chosen)


def freeze_first(model: nn.Module, count: int, layers: Sequence[str], batch: Any = None) -> list[str]:
    """Freeze the first `count` of the named layers, and return their names; `batch` may be in channels_last, too."""
    known = _layers(model)
    if unknown := [name for name in layers if name not in known]:
        raise ArgumentError(f"{unknown[0]!r} is not a module of this model with its own parameters")
    if _is_channels_last(model.parameters()) or _is_channels_last(_leaves(batch)):
        count = _beyond_norms(count, [isinstance(known[name], nn.GroupNorm) for name in layers])
    first = list(layers[:count])
    trains_on = {id(p) for name in layers[count:] for _, p in own_parameters(known[name])}
    frozen = [p for name in first for _, p in own_parameters(known[name]) if p.requires_grad and id(p) not in trains_on]
    for parameter in frozen:
        parameter.requires_grad_(False)
        parameter.grad = None
    if frozen:
        _spare_norms(model)
    return first


def _spare_norms(model: nn.Module) -> None:
    """Keep torch from crashing in GroupNorms that train behind frozen layers, in whatever order layers are used."""
    for module in model.modules():
        if isinstance(module, nn.GroupNorm) and _lay_out not in module._forward_pre_hooks.values():  # noqa: SLF001
            module.register_forward_pre_hook(_lay_out, prepend=True)  # before a hook that refuses such an input


def _lay_out(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Return contiguous inputs if the first one needs no gradient; a pre-hook of a GroupNorm."""
    x = inputs[0] if inputs else None
    if not isinstance(x, torch.Tensor) or x.device.type != "cpu" or x.requires_grad or not torch.is_grad_enabled():
        return None
    return x.contiguous(), *inputs[1:]


def _beyond_norms(count: int, are_norms: Sequence[bool]) -> int:
    """Return how many layers to freeze so that the first one left is not a GroupNorm.

    If only GroupNorms would be left, the layer before them stays too: something has to train.
    """
    others = [place for place, is_norm in enumerate(are_norms) if not is_norm]
    return next((place for place in others if place >= count), max(others, default=0)) if count else 0


def _is_channels_last(tensors: Iterable[torch.Tensor]) -> bool:
    """Is one of them on a CPU with its channels last, in two or three dimensions of space?"""
    images = (t for t in tensors if t.device.type == "cpu" and t.dim() in (4, 5) and t.stride(1) == 1)
    return any(t.stride() != t.new_empty(t.shape, device="meta").stride() for t in images)


def _leaves(batch: Any) -> list[torch.Tensor]:
    leaves: list[Any] = []
    map_batch(batch, leaves.append)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _trained(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """Return the layers with parameters that require a gradient, and those parameters."""
    own = {name: [p for _, p in own_parameters(module) if p.requires_grad] for name, module in _layers(model).items()}
    return {name: parameters for name, parameters in own.items() if parameters}


def _layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules with their own parameters by name, each at its last place."""
    places: dict[nn.Module, str] = {}
    for name, module in bare(model).named_modules(remove_duplicate=False):
        if any(own_parameters(module)):
            places.pop(module, None)
            places[module] = plain_name(name)
    return {name: module for module, name in places.items()}
