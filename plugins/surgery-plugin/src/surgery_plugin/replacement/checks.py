"""What surgery can't do, with the reason and what to do instead."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import nn

from engine_core.errors import ArgumentError, ArgumentTypeError

from .plan import Replacement, title

SEALED = {
    "DistributedDataParallel": "DistributedDataParallel",
    "FullyShardedDataParallel": "FSDP",
    "FSDPModule": "fully_shard",
    "OptimizedModule": "torch.compile",
    "ScriptModule": "TorchScript",
}
"""torch's classes that keep the modules and parameters they were made with, and what makes each."""

OWN = frozenset(vars(nn.Module()))


def check_arguments(model: Any, policies: Any, optimizers: Iterable[Any]) -> None:
    """Raise unless these are a model, policies by type, and optimizers."""
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(f"model: {type(model).__name__} is not a torch.nn.Module")
    if not isinstance(policies, Mapping):
        raise ArgumentTypeError(f"policies: {policies!r} is not a mapping; write {{torch.nn.Conv2d: policy}}")
    for key, policy in policies.items():
        if not (isinstance(key, type) and issubclass(key, nn.Module)):
            raise ArgumentTypeError(f"policies: {key!r} is not a class of modules, such as torch.nn.Conv2d")
        if isinstance(policy, nn.Module) or not callable(policy):
            raise ArgumentTypeError(
                f"policies: {policy!r} for {key.__name__} is not a function; give one that takes a "
                "module and its name and returns a replacement, or None"
            )
    for optimizer in optimizers:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ArgumentTypeError(f"optimizers: {optimizer!r} is not a torch.optim.Optimizer")
    check_open("", model)
    names = {key.__name__ for key in policies}
    for name, module in model.named_modules():
        if _sealed(module) == "TorchScript" and getattr(module, "original_name", None) in names:
            check_open(name, module)


def check_plan(model: nn.Module, plan: Iterable[Replacement]) -> None:
    """Raise if a module can't be replaced where it is, or its replacement belongs elsewhere."""
    former = {module: name for name, module in model.named_modules()}
    replaced = {item.old for item in plan}
    given: dict[nn.Module, str] = {}
    for item in plan:
        if item.old is model:
            raise ArgumentError(
                f"a policy wants to replace the model itself, a {type(model).__name__}, and references to it would "
                "keep the old one; put it into a torch.nn.Sequential"
            )
        for module in (*item.above, item.old):
            check_open(former[module], module)
        place = title(item.name, item.old)
        if item.new in given:
            raise ArgumentError(
                f"the policies returned one {type(item.new).__name__} for {given[item.new]} and for {place}, which "
                "were not shared; return a new module each time"
            )
        given[item.new] = place
        inner = set(item.old.modules())
        if item.new in replaced or (item.new in former and item.new not in inner):
            raise ArgumentError(
                f"the policy returned {title(former[item.new], item.new)} for {place}: it is already part of the "
                "model; return a new module"
            )
        for module in item.new.modules():
            if module in former and module not in inner and item.old in set(module.modules()):
                raise ArgumentError(
                    f"what the policy returned for {place} contains {title(former[module], module)}, which contains "
                    "that place itself"
                )


def check_references(former: Mapping[nn.Module, str], remaining: set[nn.Module], plan: Iterable[Replacement]) -> None:
    """Raise if a module refers to a replaced one, or to a part of it, where only its own code can find it."""
    insides = [set(item.old.modules()) for item in plan]
    gone = {item.old for item in plan} | (former.keys() - remaining)
    for holder in former.keys() & remaining:
        for attribute, value in vars(holder).items():
            if attribute in OWN:
                continue
            held = [module for module in _modules_in(value) if module in gone]
            for module in held:
                if not any(module in inside and holder in inside for inside in insides):
                    where = f"{former[holder]}.{attribute}" if former[holder] else attribute
                    raise ArgumentError(
                        f"{title(former[module], module)} is also in the attribute {where!r}, outside the module tree, "
                        "so it would run unchanged from there; keep it in a torch.nn.ModuleList or ModuleDict, or "
                        "don't replace it"
                    )


def _modules_in(value: Any) -> list[nn.Module]:
    """Return the modules in nested containers, bound methods and partials, without looking inside modules."""
    found: list[nn.Module] = []
    seen: set[int] = set()
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, nn.Module):
            found.append(item)
            continue
        parts = _parts_of(item)
        if parts and id(item) not in seen:
            seen.add(id(item))
            left.extend(parts)
    return found


def _parts_of(item: Any) -> Collection[Any]:
    if isinstance(item, dict):
        return item.values()
    if isinstance(item, (list, tuple, set, frozenset, deque)):
        return item
    if isinstance(item, MethodType):
        return (item.__self__,)
    if isinstance(item, partial):
        return (item.func, *item.args, *item.keywords.values())
    return ()


def check_open(name: str, module: nn.Module, *, recompiles: bool = False) -> None:
    """Raise if a module was made by a wrapper or a compiler that keeps the modules that were there.

    Args:
        recompiles: accept what torch.compile made, for a change that it sees when the module is called.
    """
    maker = _sealed(module)
    if maker is not None and not (recompiles and maker == "torch.compile"):
        raise ArgumentError(
            f"{title(name, module)} was made by {maker}, which keeps the modules it was made with; "
            "do the surgery first, then wrap, compile or script the model"
        )


def _sealed(module: nn.Module) -> str | None:
    for cls in type(module).__mro__:
        if cls.__name__ in SEALED and cls.__module__.partition(".")[0] == "torch":
            return SEALED[cls.__name__]
    return "torch.compile" if getattr(module, "_compiled_call_impl", None) is not None else None
