"""Replace modules by type: ask, check, insert, adapt, update optimizers. A refusal leaves everything as it was."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack

import torch
from torch import nn

from engine_core.errors import NothingReplacedWarning
from engine_core.messages import warn
from engine_core.surgery import follow_parameters

from .checks import check_arguments, check_plan, check_references
from .inheritance import Heritage, tensors_of
from .plan import Policy, Replacement, plan_surgery


def replace_modules(
    model: nn.Module,
    policies: Mapping[type[nn.Module], Policy],
    *,
    optimizers: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] = (),
) -> list[str]:
    """Call each type's policy on the modules of that type, and replace them with what it returns.

    The most specific type decides: a subclass with its own policy gets only that one. A policy must leave the module
    as it is, but may put it into the new one. A module in several places is passed to the policy once and replaced in
    all of them. New modules are not searched, and neither is `out_proj` of `nn.MultiheadAttention`, which is never
    called.

    A new module takes over the device and dtype of the one it replaces (of the modules around it if that had no
    tensors), its training flag and its hooks. So do its parts with the names of old parts. A parameter that replaces
    a frozen one is frozen. Optimizers are updated as `follow_parameters` says. If anything is refused, or a policy
    raises, model and optimizers stay as they were.

    Args:
        policies: functions that take a module and its qualified name, and return a module, or None to keep it.
        optimizers: the one, or those, already made for this model.

    Returns:
        The qualified name of each place that now has another module; a shared module has several.

    Raises:
        ArgumentError: (a ValueError) for what can't be replaced: the model itself, modules with parametrizations or
            without shapes, wrapped, compiled or scripted models, modules that are also held outside the tree; and if
            several optimizers could train a new parameter.
        ArgumentTypeError: (a TypeError) for arguments of the wrong type, and a policy that does not return a module.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2), nn.ReLU())
        >>> replace_modules(model, {nn.ReLU: lambda module, name: nn.GELU() if name != "3" else None})
        ['1']
        >>> model[1]
        GELU(approximate='none')
    """
    optimizers = [optimizers] if isinstance(optimizers, torch.optim.Optimizer) else list(optimizers)
    check_arguments(model, policies, optimizers)
    plan = plan_surgery(model, policies)
    check_plan(model, plan)
    if not plan:
        return []
    former = {module: name for name, module in model.named_modules()}
    tensors = tensors_of(model)
    before = dict(model.named_parameters(remove_duplicate=False))
    with ExitStack() as undo:
        slots = _put_in(former, plan, undo)
        _call_parts_of_encoders(former, {parent for parent, _ in slots}, undo)
        check_references(former, set(model.modules()), plan)
        heritage = Heritage(set(former), tensors, model, undo)
        for item in plan:
            heritage.pass_on(item)
        follow_parameters(optimizers, before, dict(model.named_parameters(remove_duplicate=False)))
        undo.pop_all()
    return _names_of(slots, model)


def warn_of_nothing(algorithm: str, looked_for: str) -> None:
    """Warn that a surgery algorithm found nothing to replace: `Smoother changed nothing: the model has no nn.ReLU`."""
    warn(f"{algorithm} changed nothing: the model has no {looked_for}", NothingReplacedWarning)


def _put_in(former: Iterable[nn.Module], plan: Sequence[Replacement], undo: ExitStack) -> set[tuple[nn.Module, str]]:
    """Put the new modules where the old ones were, except inside the new ones, and return where."""
    new_of = {item.old: item.new for item in plan}
    known = set(former)
    parts = {item.old: set(item.new.modules()) - known for item in plan}
    slots = set()
    for parent in dict.fromkeys((*former, *(part for item in plan for part in item.new.modules()))):
        for key, child in list(parent._modules.items()):  # noqa: SLF001  named_children leaves out a second place
            if child in new_of and parent not in parts[child]:
                undo.callback(setattr, parent, key, child)
                setattr(parent, key, new_of[child])
                slots.add((parent, key))
    return slots


def _call_parts_of_encoders(former: Iterable[nn.Module], changed: set[nn.Module], undo: ExitStack) -> None:
    """Make torch's encoders call their parts in evaluation too, instead of reading the weights of some."""
    layers = {module for module in changed if isinstance(module, nn.TransformerEncoderLayer)}
    encoders = [module for module in former if isinstance(module, nn.TransformerEncoder)]
    for module, switch in (
        *((layer, "activation_relu_or_gelu") for layer in layers),
        *((encoder, "use_nested_tensor") for encoder in encoders if layers & set(encoder.modules())),
    ):
        undo.callback(setattr, module, switch, getattr(module, switch))
        setattr(module, switch, 0)


def _names_of(slots: set[tuple[nn.Module, str]], model: nn.Module) -> list[str]:
    modules = dict(model.named_modules(remove_duplicate=False))
    places = ((name, name.rpartition(".")) for name in modules if name)
    return [name for name, (parent, _, key) in places if (modules[parent], key) in slots]
