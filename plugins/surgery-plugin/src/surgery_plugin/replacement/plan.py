"""Plan the surgery: ask the policies which modules to replace, and with what. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import is_parametrized

from engine_core.errors import ArgumentError, ArgumentTypeError, add_note

Policy: TypeAlias = Callable[[Any, str], nn.Module | None]
"""Takes a module of its key's type and its qualified name; returns a replacement, or None to keep it."""

FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
"""The dtypes that a model as a whole is cast to; anything else was chosen on purpose."""


class Surroundings(NamedTuple):
    """Devices and dtypes of the tensors at a place, or if it has none, in the nearest module around it."""

    devices: frozenset[torch.device]
    dtypes: frozenset[torch.dtype]


@dataclass(frozen=True, eq=False)
class Replacement:
    """A module, its replacement, its first name, and the modules around it there, the model first."""

    old: nn.Module
    new: nn.Module
    name: str
    above: tuple[nn.Module, ...]
    surroundings: Surroundings


def title(name: str, module: nn.Module) -> str:
    """Return a module's name for messages, `'features.0' (ReLU)`."""
    return f"{name!r} ({type(module).__name__})" if name else f"the model itself ({type(module).__name__})"


def plan_surgery(model: nn.Module, policies: Mapping[type[nn.Module], Policy]) -> list[Replacement]:
    """Return what the policies want, in the order of the model's modules, asking once for each module."""
    plan: list[Replacement] = []
    seen: set[nn.Module] = set()
    kinds: dict[nn.Module, Surroundings] = {}

    def visit(module: nn.Module, name: str, above: tuple[nn.Module, ...]) -> None:
        if module in seen:
            return
        seen.add(module)
        if (new := _ask(module, name, policies)) is not None:
            plan.append(Replacement(module, new, name, above, _surroundings((*above, module), kinds)))
            return
        for key, child in module.named_children():
            if not (key == "parametrizations" and is_parametrized(module)):  # they make weights, and no outputs
                visit(child, f"{name}.{key}" if name else key, (*above, module))

    visit(model, "", ())
    return plan


def _ask(module: nn.Module, name: str, policies: Mapping[type[nn.Module], Policy]) -> nn.Module | None:
    key = next((cls for cls in type(module).__mro__ if cls in policies), None)
    # The latter is `out_proj` of `nn.MultiheadAttention`, which only reads its weights: a replacement would never run.
    if key is None or isinstance(module, NonDynamicallyQuantizableLinear):
        return None
    if any(map(is_lazy, (*module.parameters(), *module.buffers()))):
        raise ArgumentError(
            f"{title(name, module)} is lazy: its parameters have no shape yet; run the model once before the surgery"
        )
    try:
        new = policies[key](module, name)
    except Exception as error:
        add_note(error, f"the policy for {key.__name__} raised this for {title(name, module)}; nothing was replaced")
        raise
    if new is None or new is module:
        return None
    if not isinstance(new, nn.Module):
        raise ArgumentTypeError(
            f"the policy for {key.__name__} returned {new!r} for {title(name, module)}; "
            "it has to return a module, or None to keep it"
        )
    if any(map(is_lazy, new.parameters())):
        raise ArgumentError(
            f"the policy for {key.__name__} returned a lazy module for {title(name, module)}: "
            "its parameters have no shape yet; make it with its sizes"
        )
    return new


def _surroundings(path: tuple[nn.Module, ...], kinds: dict[nn.Module, Surroundings]) -> Surroundings:
    found = Surroundings(frozenset(), frozenset())
    for module in reversed(path):
        if module not in kinds:
            tensors = [*module.parameters(), *module.buffers()]
            kinds[module] = Surroundings(
                frozenset(tensor.device for tensor in tensors),
                frozenset(tensor.dtype for tensor in tensors if tensor.dtype in FLOATS),
            )
        found = Surroundings(found.devices or kinds[module].devices, found.dtypes or kinds[module].dtypes)
        if found.dtypes:
            break
    return found
