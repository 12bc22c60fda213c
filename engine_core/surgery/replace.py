"""Replace modules by type: ask, check, put in, make alike, let optimizers follow. Nothing stays of what was refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack

import torch
from torch import nn

from ..errors import NothingReplacedWarning
from ..messages import warn
from .checks import check_arguments, check_plan, check_references
from .inheritance import Heritage, tensors_of
from .optimizers import follow_parameters
from .plan import Policy, Replacement, plan_surgery

__all__ = ["replace_modules", "warn_of_nothing"]


def replace_modules(
    model: nn.Module,
    policies: Mapping[type[nn.Module], Policy],
    *,
    optimizers: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] = (),
) -> list[str]:
    """Give each module of a type to that type's policy, and put what it returns in the module's place.

    The policy of the most specific type decides: for a subclass with an own policy only that is asked. It must leave
    the module as it is, but may put it into the new one. A module that is in several places is asked for once and
    replaced in all. What was put in is not looked into, neither is `out_proj` of `nn.MultiheadAttention`, which is
    never called.

    A new module takes over device and dtype of what it replaces (of what is around that if it had no tensors), the
    training flag, and the hooks; its parts that have the names of former parts do so too, and a parameter that takes
    the place of a frozen one is frozen. Optimizers follow as `follow_parameters` says. If anything is refused, or a
    policy raises, model and optimizers are as they were.

    Args:
        policies: what takes a module and its qualified name, and returns a module, or None to leave it.
        optimizers: the one or those that were made for this model already.

    Returns:
        The qualified name of each place that has another module now; a shared module has several.

    Raises:
        ArgumentError: (a ValueError) for what can't be replaced: the model itself, modules with parametrizations or
            without shapes, wrapped, compiled or scripted models, modules that are held outside of the tree; and if it
            is open which optimizer trains a new parameter.
        ArgumentTypeError: (a TypeError) for arguments of wrong types, and for a policy that returns no module.

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
    """Warn that a surgery algorithm found nothing to replace, naming it and what it looked for.

    Example:
        >>> import warnings
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     warn_of_nothing("Smoother", "nn.ReLU")
        >>> str(caught[0].message)
        'Smoother changed nothing: the model has no nn.ReLU'
    """
    warn(f"{algorithm} changed nothing: the model has no {looked_for}", NothingReplacedWarning)


def _put_in(former: Iterable[nn.Module], plan: Sequence[Replacement], undo: ExitStack) -> set[tuple[nn.Module, str]]:
    """Put the new modules where the old ones were, but for the places within the new ones, and return where."""
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
    """Let torch's encoders call their parts in evaluation too, where they would read the weights of some instead."""
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
