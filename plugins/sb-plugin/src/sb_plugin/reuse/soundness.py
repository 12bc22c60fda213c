"""Why the outputs of a scoring forward can't be reused, as far as the model shows without running it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as hooks_of_all
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

__all__ = ["unsound"]

_WRAPPERS = {
    "DataParallel": "DataParallel",
    "DistributedDataParallel": "DistributedDataParallel",
    "FullyShardedDataParallel": "FSDP",
    "FSDPModule": "fully_shard",
    "OptimizedModule": "torch.compile",
}
"""Torch classes that make a model compute differently, with the names users know; not all are imported."""

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_LINEAR_FORWARD = nn.Linear.forward


def unsound(model: nn.Module) -> str | None:
    """Return why no output of the model's `nn.Linear` layers may be reused, or None.

    Modes, hooks and wrappers may change from step to step, so this is cheap enough to call before each. A forward may
    have further reasons, such as functional dropout; `LinearOutputs.fault` names those.

    Example:
        >>> unsound(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1)))
        "dropout is active in '1' (Dropout): set it to 0"
    """
    seen_linear = False
    for module in model.modules():
        if type(module) is nn.Linear:
            seen_linear = True
        if reason := _why_not(module):
            name = next(name for name, other in model.named_modules() if other is module)
            where = f"{name!r} ({type(module).__name__})" if name else f"the model ({type(module).__name__})"
            return reason.format(where=where)
    if not seen_linear:
        return f"{type(model).__name__} has no layer that is exactly a torch.nn.Linear"
    return _why_not_now(model)


def _why_not_now(model: nn.Module) -> str | None:
    if any(getattr(hooks_of_all, f"_global{kind}") for kind in _HOOKS):
        return "hooks are registered for all modules: remove them"
    if nn.Linear.forward is not _LINEAR_FORWARD:
        return "torch.nn.Linear.forward was replaced by another function"
    device = next((parameter.device.type for parameter in model.parameters()), "cpu")
    if torch.is_autocast_enabled(device):
        return "autocast is on: outputs are reused only in unchanged precision"
    return None


def _why_not(module: nn.Module) -> str | None:
    if (wrapper := _wrapper_of(module)) is not None:
        return "{where} is wrapped by " + wrapper
    if any(getattr(module, kind) for kind in _HOOKS):
        return "{where} has hooks: remove them"
    if type(module) is nn.Linear and "forward" in module.__dict__:
        return "{where} has its own forward"
    return _why_not_in_training(module) if module.training else None


def _why_not_in_training(module: nn.Module) -> str | None:
    if isinstance(module, _BatchNorm):
        return "{where} uses the statistics of the batch: set it to eval mode, or use a per-row norm"
    if _drops(module):
        return "dropout is active in {where}: set it to 0"
    return None


def _wrapper_of(module: nn.Module) -> str | None:
    for cls in type(module).__mro__:
        if cls.__name__ in _WRAPPERS and cls.__module__.partition(".")[0] == "torch":
            return _WRAPPERS[cls.__name__]
    return "torch.compile" if getattr(module, "_compiled_call_impl", None) is not None else None


def _drops(module: Any) -> bool:
    if isinstance(module, _DropoutNd):
        return module.p > 0
    return isinstance(module, (nn.MultiheadAttention, nn.RNNBase)) and module.dropout > 0
