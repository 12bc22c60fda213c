"""What can't be spread over several ranks, refused before anything is joined or changed."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from ..errors import ArgumentError, ArgumentTypeError, did_you_mean
from ..messages import warn
from .settings import FSDP, Parallel, started

LOWEST_FOR_FSDP = "2.13"
"""The lowest torch with which FSDP was tried here."""
_GIVEN = {"module", "mesh", "process_group", "device_mesh"}
_OF_FSDP1 = {
    "auto_wrap_policy": "give the classes as FSDP(blocks=[...])",
    "sharding_strategy": "it is reshard_after_forward now",
    "mixed_precision": "it is mp_policy now",
    "cpu_offload": "it is offload_policy now",
    "use_orig_params": "they always are",
    "ignored_modules": "it is ignored_params now",
}


def check_spread(model: torch.nn.Module, parallel: Parallel | None, precision: str) -> None:
    """Raise if this model, or this kind of run, can't be spread over the processes that were started.

    Raises:
        ArgumentError, ArgumentTypeError: (a ValueError, a TypeError) with what to do instead.
    """
    if parallel is None:
        _say_that_each_is_alone()
        return
    if started() == 1:
        return
    _check_model(model)
    if not isinstance(parallel, FSDP):
        _check_args(parallel, torch.nn.parallel.DistributedDataParallel)
        return
    check_torch(torch.__version__)
    if precision == "amp_fp16":
        raise ArgumentError(
            "precision 'amp_fp16' does not work with FSDP: torch's GradScaler looks at a rank's part of the gradients "
            "only; use 'amp_bf16', or parallel='ddp'"
        )
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415  only sharded runs need it

    _check_args(parallel, fully_shard)


def _say_that_each_is_alone() -> None:
    several = os.environ.get("WORLD_SIZE", "1")
    if several.isdigit() and int(several) > 1 and os.environ.get("RANK", "0") == "0":
        warn(
            f"parallel=None: each of the {several} processes trains a model of its own, and writes the same files; "
            "parallel='auto' trains one together",
            UserWarning,
        )


def check_torch(version: str) -> None:
    """Raise if this torch is older than the lowest with which FSDP was tried."""
    if _numbers(version) < _numbers(LOWEST_FOR_FSDP):
        raise ArgumentError(
            f"FSDP needs torch {LOWEST_FOR_FSDP} or newer, and this is {version}: pip install -U torch, or use "
            "parallel='ddp'"
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.split(".")[:2])


def _check_model(model: torch.nn.Module) -> None:
    """Raise if the model is wrapped, sharded or compiled already, or has weights without a shape."""
    for name, module in model.named_modules():
        place = f"its {name!r}" if name else "the model"
        if (kind := _spread_by(module)) is not None:
            raise ArgumentError(
                f"{place} is spread by {kind} already: give the plain module, which the Trainer spreads itself"
            )
    kind = type(model).__name__
    if kind == "OptimizedModule":
        raise ArgumentError(
            "the model is what torch.compile(model) returned, whose weights have other names: call model.compile(), "
            "which compiles in place, and give the model"
        )
    for name, tensor in model.named_parameters():
        if torch.nn.parameter.is_lazy(tensor):
            raise ArgumentError(f"{name} has no shape yet: run the model on one batch before it goes to the Trainer")


def _spread_by(module: torch.nn.Module) -> str | None:
    if isinstance(module, (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)):
        return type(module).__name__
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")  # without its import there are no such modules
    if fsdp is not None and isinstance(module, fsdp.FullyShardedDataParallel):
        return "FullyShardedDataParallel"
    if fsdp is not None and isinstance(module, getattr(fsdp, "FSDPModule", ())):
        return "fully_shard"
    return None


def check_parts(model: torch.nn.Module, parts: Sequence[torch.nn.Module]) -> None:
    """Raise for weights that torch can't shard, or with which it fails at the first step.

    Args:
        parts: the modules that are sharded one by one: blocks, and last the model, which has the rest.
    """
    part_at = {name: part for name, part in model.named_modules(remove_duplicate=False) if part in set(parts)}
    for name, part in part_at.items():
        if type(part).forward is torch.nn.Module.forward:
            raise ArgumentError(
                f"FSDP: the block {name!r} is a {type(part).__name__}, which has no forward: give the class of the "
                "modules in it"
            )
    found: dict[torch.nn.Parameter, tuple[torch.nn.Module, str]] = {}
    kinds: dict[torch.nn.Module, tuple[str, torch.dtype]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        part = next(part_at[place] for place in _places(name) if place in part_at)
        former, first = found.setdefault(parameter, (part, name))
        if former is not part:
            raise ArgumentError(
                f"FSDP: {first!r} and {name!r} are one weight in two blocks, and each block is sharded by itself: "
                "leave out the class of one, or give one that has both in it"
            )
        if not parameter.dim():
            raise ArgumentError(f"FSDP: {name!r} has no dimensions, and can't be sharded: give it the shape (1,)")
        if not parameter.requires_grad:
            continue
        other, dtype = kinds.setdefault(part, (name, parameter.dtype))
        if parameter.dtype is not dtype:
            raise ArgumentError(
                f"FSDP: {other!r} is {dtype} and {name!r} is {parameter.dtype}, and the weights that are gathered "
                "together have one dtype: make those of another one a block, or give all of them the same"
            )


def _places(name: str) -> list[str]:
    """Return the qualified names of the modules around a parameter, the nearest first and "" last."""
    parts = name.split(".")[:-1]
    return [".".join(parts[:count]) for count in range(len(parts), -1, -1)]


def _check_args(parallel: Parallel, function: Callable[..., Any]) -> None:
    known: Iterable[str] = inspect.signature(function).parameters
    for name in parallel.args:
        where = f"{type(parallel).__name__}: args has {name!r}, which"
        if name in _GIVEN:
            raise ArgumentError(f"{where} the Trainer gives itself")
        if name not in known:
            hint = f" and is FSDP1's: {_OF_FSDP1[name]}" if name in _OF_FSDP1 else did_you_mean(str(name), known)
            raise ArgumentTypeError(f"{where} torch's {function.__name__} does not take{hint}")
