"""The weights of a model, parameters and persistent buffers, by name and place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from engine_core.errors import ArgumentError, ArgumentTypeError

__all__ = ["Place", "bare", "check_made", "find_places", "is_expanded", "own_parameters", "plain_name", "tensors_at"]

_WRAPPER = "_orig_mod"  # where a module compiled by torch.compile keeps the original; part of its weights' names too


class Place(NamedTuple):
    """Where a weight is: an attribute of a module; `names` are its own and those of all weights tied to it."""

    names: tuple[str, ...]
    module: nn.Module
    attribute: str
    parameter: nn.Parameter | None
    """None for a buffer, which may be replaced by another tensor at any time."""


def bare(model: nn.Module) -> nn.Module:
    """Return what is inside the wrappers of torch.compile, DistributedDataParallel and DataParallel.

    Raises:
        ArgumentTypeError: (a TypeError) for anything but a module.

    Example:
        >>> model = nn.Linear(1, 1)
        >>> bare(nn.DataParallel(model)) is model
        True
    """
    given: object = model
    if not isinstance(given, nn.Module):
        raise ArgumentTypeError(f"model: {type(given).__name__} is not a torch.nn.Module")
    while True:
        if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            model = model.module
            continue
        compiled = dict(model.named_children()).get(_WRAPPER)
        if compiled is None:
            return model
        model = compiled


def plain_name(*parts: str) -> str:
    """Return a qualified name as it would be without torch.compile.

    Example:
        >>> plain_name("0._orig_mod", "weight"), plain_name("", "weight")
        ('0.weight', 'weight')
    """
    return ".".join(part for name in parts for part in name.split(".") if part and part != _WRAPPER)


def own_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters of a module by attribute, without those of its children."""
    return module.named_parameters(recurse=False, remove_duplicate=False)


def find_places(model: nn.Module) -> list[Place]:
    """Return the places of the parameters and persistent buffers of `model`, tied parameters as one.

    Non-persistent buffers are what a model can rebuild; they are not part of its weights.
    """
    root = bare(model)
    saved = root.state_dict().keys()
    found: dict[tuple[int, str], Place] = {}
    for path, module in root.named_modules(remove_duplicate=False):
        for attribute, parameter in own_parameters(module):
            _add(found, (id(parameter), ""), Place((plain_name(path, attribute),), module, attribute, parameter))
        for attribute, _ in module.named_buffers(recurse=False, remove_duplicate=False):
            if (f"{path}.{attribute}" if path else attribute) in saved:
                _add(found, (id(module), attribute), Place((plain_name(path, attribute),), module, attribute, None))
    return list(found.values())


def _add(found: dict[tuple[int, str], Place], key: tuple[int, str], place: Place) -> None:
    known = found.get(key)
    found[key] = place if known is None else known._replace(names=known.names + place.names)


def tensors_at(places: Sequence[Place]) -> list[torch.Tensor | None]:
    """Return what is at the places now, None if a module has lost it."""
    try:  # a module's own attribute lookup takes ten times as long, and this runs after each step
        return [
            (place.module._buffers if place.parameter is None else place.module._parameters)[place.attribute]  # noqa: SLF001
            for place in places
        ]
    except KeyError:
        return [getattr(place.module, place.attribute, None) for place in places]


def is_expanded(tensor: torch.Tensor) -> bool:
    """Do several elements of the tensor share memory? Then torch refuses to write to it.

    Example:
        >>> is_expanded(torch.zeros(1).expand(3)), is_expanded(torch.zeros(3))
        (True, False)
    """
    if tensor.layout is not torch.strided:
        return False
    return any(size > 1 and step == 0 for size, step in zip(tensor.shape, tensor.stride(), strict=True))


def check_made(name: str, tensor: torch.Tensor) -> None:
    """Raise an ArgumentError if a weight is lazy: there is nothing to copy."""
    if is_lazy(tensor):
        raise ArgumentError(f"{name!r} is lazy: it has no shape yet; run the model once first")
