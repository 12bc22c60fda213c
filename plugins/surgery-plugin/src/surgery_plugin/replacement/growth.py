"""Put modules into a model in mid-training, and take them out: what optimizers train follows. Knows no engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from engine_core.errors import ArgumentError
from engine_core.surgery import follow_parameters

from .checks import check_open


class _Joining(NamedTuple):
    """A module that joins a model: its place there, and the module that it is to be a copy of."""

    name: str
    module: nn.Module
    parent: nn.Module
    key: str
    source: str
    origin: nn.Module


def grow(
    model: nn.Module,
    joining: Mapping[str, tuple[nn.Module, str]],
    *,
    optimizers: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] = (),
) -> list[str]:
    """Put modules into a model in mid-training, as copies of others that it has; return their names.

    Each takes over the weights, buffers, device, dtypes, modes and frozen parameters of its source. Its parameters join
    the groups that train the source's, at their end, with a copy of what the optimizers keep for those. If anything is
    refused, model and optimizers stay as they were.

    Args:
        joining: for the name of each place, the module that comes there and the name of its source.
        optimizers: the one, or those, already made for this model.

    Raises:
        ArgumentError: (a ValueError) for a place that is taken or has nothing around it, for a source that the model
            does not have or that is made otherwise, and for an optimizer that can't take parameters in mid-training.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> grow(model, {"2": (nn.Linear(2, 2), "1")}, optimizers=optimizer)
        ['2']
        >>> torch.equal(model[2].weight, model[1].weight), len(optimizer.param_groups[0]["params"])
        (True, 6)
    """
    found = [_joining(model, name, module, source) for name, (module, source) in joining.items()]
    before, sources = _parameters(model), dict[str, str]()
    for each in found:
        _inherit(each)
        sources |= {f"{each.name}.{name}": f"{each.source}.{name}" for name in _parameters(each.module)}
    with ExitStack() as undo:
        for each in found:
            each.parent.add_module(each.key, each.module)
            undo.callback(delattr, each.parent, each.key)
        follow_parameters(_listed(optimizers), before, _parameters(model), sources)
        undo.pop_all()
    return [*joining]


def take_out(
    model: nn.Module,
    names: Iterable[str],
    *,
    optimizers: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] = (),
) -> dict[str, nn.Module]:
    """Take modules out of a model and return them by name; optimizers forget their parameters.

    Raises:
        ArgumentError: (a ValueError) for a name that the model does not have, and for an optimizer that can't lose
            parameters once it is made. Then all stays as it was.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        >>> take_out(model, ["1"]), len(model)
        ({'1': Linear(in_features=2, out_features=2, bias=True)}, 1)
    """
    places = [(name, *_place(model, name)) for name in names]
    before, taken = _parameters(model), dict[str, nn.Module]()
    with ExitStack() as undo:
        for name, parent, key in places:
            taken[name] = _module(parent, key, name)
            delattr(parent, key)
            undo.callback(parent.add_module, key, taken[name])
        follow_parameters(_listed(optimizers), before, _parameters(model))
        undo.pop_all()
    return taken


def made_alike(module: nn.Module, other: nn.Module) -> str:
    """Return how the makes of two modules differ, their values aside, or nothing."""
    own, theirs = ({name: type(part) for name, part in each.named_modules()} for each in (module, other))
    for name in {**own, **theirs}:
        if own.get(name) is not theirs.get(name):
            kinds = [kind.__name__ if kind else "nothing" for kind in (own.get(name), theirs.get(name))]
            return f"{f'{name!r} in it' if name else 'it'} is {kinds[0]} in place of {kinds[1]}"
    sizes, others = _sizes(module), _sizes(other)
    for name in {**sizes, **others}:
        if sizes.get(name) != others.get(name):
            return f"{name!r} in it has the shape {sizes.get(name)} in place of {others.get(name)}"
    return ""


def _joining(model: nn.Module, name: str, module: nn.Module, source: str) -> _Joining:
    """Check what joins a model, and where."""
    parent, key = _place(model, name)
    if hasattr(parent, key):
        raise ArgumentError(f"grow: the model has {name!r} already; give a name that is free")
    origin = _module(*_place(model, source), source)
    if difference := made_alike(module, origin):
        raise ArgumentError(
            f"grow: the {type(module).__name__} for {name!r} can't be a copy of {source!r}: {difference}; "
            "make both alike"
        )
    return _Joining(name, module, parent, key, source, origin)


def _inherit(each: _Joining) -> None:
    for own, twin in zip(_tensors(each.module).values(), _tensors(each.origin).values(), strict=True):
        own.data = own.data.to(twin.device, twin.dtype)
        own.requires_grad_(twin.requires_grad)
    each.module.load_state_dict(each.origin.state_dict())
    for part, other in zip(each.module.modules(), each.origin.modules(), strict=True):
        part.training = other.training


def _place(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    """Return the module around a place, and the last part of its name."""
    path, _, key = name.rpartition(".")
    around, parts = model, path.split(".") if path else []
    check_open("", model, recompiles=True)
    for count, part in enumerate(parts, 1):
        around = _module(around, part, ".".join(parts[:count]))
        check_open(".".join(parts[:count]), around, recompiles=True)
    return around, key


def _module(parent: nn.Module, key: str, name: str) -> nn.Module:
    found = dict(parent.named_children()).get(key)
    if found is None:
        raise ArgumentError(f"the model has no module {name!r}; {type(parent).__name__} around it has no {key!r}")
    return found


def _sizes(module: nn.Module) -> dict[str, Any]:
    return {name: None if is_lazy(tensor) else tuple(tensor.shape) for name, tensor in _tensors(module).items()}


def _tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    return dict(model.named_parameters(remove_duplicate=False))


def _listed(optimizers: torch.optim.Optimizer | Iterable[torch.optim.Optimizer]) -> list[torch.optim.Optimizer]:
    return [optimizers] if isinstance(optimizers, torch.optim.Optimizer) else list(optimizers)
