"""The losses of the rows in State: computed once for all who ask, and anew once anything they come from is another."""

from __future__ import annotations

import functools
import weakref
from collections import OrderedDict
from contextlib import nullcontext
from enum import Enum
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch.nn import functional

from ..batch import Batches, leaves_of, map_batch
from ..errors import ArgumentError, ArgumentTypeError
from .objective import Objective
from .precision import REDUCED, autocast_of

_VALUES = {type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size}
_FIXED = (type, ModuleType, BuiltinFunctionType, CodeType, Enum, Batches)
_EMPTY = {dict, OrderedDict, set}
_MOST = 10_000
"""Parts of a model with its own loss, or of a loss, that are looked at; of more, nothing is shared."""


def row_losses(objective: Objective, model: Any, outputs: Any, batch: Any) -> torch.Tensor:
    """Return the loss of each row (n,) in single precision, even if autocast made the outputs; with its graph."""
    device = _device_of(outputs)
    is_reduced = torch.is_autocast_enabled(device.type)
    if is_reduced:
        outputs = map_batch(outputs, _to_fp32)
    with torch.autocast(device.type, enabled=False) if is_reduced else nullcontext():
        losses: Any = objective.row_losses(model, outputs, batch)
    who, n = f"{type(objective).__name__}.row_losses", objective.batches.rows(batch)
    if not isinstance(losses, torch.Tensor):
        raise ArgumentTypeError(f"{who} gave a {type(losses).__name__}, not a tensor of shape ({n},)")
    if losses.shape != (n,):
        raise ArgumentError(f"{who} gave shape {tuple(losses.shape)}, not ({n},), a loss for each row")
    return losses.float()


class SharedRowLosses:
    """The latest losses of rows with what they were computed from; each objective has one."""

    def __init__(self) -> None:
        self._latest: tuple[_Sources, torch.Tensor, int] | None = None

    def __reduce__(self) -> tuple[type[SharedRowLosses], tuple[()]]:
        return SharedRowLosses, ()  # a copy has none yet

    def of(self, state: Any) -> torch.Tensor:
        """Return the losses of the batch in a State, see `State.row_losses`."""
        if self._latest is not None:
            sources, losses, version = self._latest
            if losses._version == version and sources.are_those_of(state):  # noqa: SLF001  the documented name
                return losses
        self._latest = None
        with torch.no_grad(), autocast_of(state.precision, _device_of(state.outputs)):
            losses = row_losses(state.objective, state.model, state.outputs, state.batch)
        # Read afterwards: what computing them has counted, say, does not make them others.
        if (found := _Sources.of(state)) is not None and not losses.is_inference():
            self._latest = found, losses, losses._version  # noqa: SLF001
        return losses


class _Sources:
    """What losses are computed from, as far as Python shows it: by value, and tensors by identity and version.

    It keeps no tensor alive, so a graph is freed as it would be without. A write past autograd, by `.data` or through
    an array that shares the memory, changes no version; and a global that a loss reads is not seen.
    """

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.tensors: list[weakref.ref[torch.Tensor]] = []

    @classmethod
    def of(cls, state: Any) -> _Sources | None:
        """Return those of the losses in `state`; None if some can't be seen, such as the content of an array."""
        objective, found = state.objective, cls()
        precision = state.precision, torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")
        roots = [state.outputs, state.batch, *precision, state.timestamp.batch]
        if objective.loss_fn is None or type(objective) is not Objective:  # the loss may be the model's
            roots += state.model, {**vars(objective), "shared_rows": None}
        else:
            trained = objective._trained  # noqa: SLF001  of several parts, those that count
            roots += objective.loss_fn, objective.targets, objective.count, objective.batches, trained
        return found if found._read(roots) else None

    def are_those_of(self, state: Any) -> bool:
        """Are they the same now?"""
        now = _Sources.of(state)
        if now is None or self.values != now.values:
            return False
        return all(own() is other() for own, other in zip(self.tensors, now.tensors, strict=True))

    def _read(self, roots: list[Any]) -> bool:
        """Read what these consist of, and return whether all of it can be seen."""
        left, met = roots, dict[int, tuple[int, Any]]()  # what is met stays, so that no other has its id
        while left:
            item = left.pop()
            self.values.append(type(item))
            if len(self.values) > _MOST:
                return False
            if isinstance(item, torch.Tensor):
                if item.is_inference():
                    return False  # it has no version
                self.tensors.append(weakref.ref(item))
                self.values.append(item._version)  # noqa: SLF001  the documented name
            elif type(item) in _VALUES or isinstance(item, _FIXED) or _is_of_torch(item):
                self.values.append(item)
            elif id(item) in met:
                self.values.append(met[id(item)][0])
            elif (parts := _parts_of(item)) is None:
                return False
            else:
                met[id(item)] = len(met), item
                self.values.append(len(parts))
                left += parts
        return True


def _is_of_torch(item: Any) -> bool:
    return isinstance(item, FunctionType) and item.__globals__ is vars(functional)


def _parts_of(item: Any) -> list[Any] | None:
    """Return what an object consists of; None if it may have more than Python shows."""
    if isinstance(item, dict):
        parts = [*item.keys(), *item.values()]
    elif isinstance(item, (list, tuple, set, frozenset)):
        parts = [*item]
    elif isinstance(item, FunctionType):
        parts = [item.__code__, item.__closure__, item.__defaults__, item.__kwdefaults__]
    elif isinstance(item, MethodType):
        return [item.__func__, item.__self__]
    elif isinstance(item, functools.partial):
        parts = [item.func, item.args, item.keywords]
    elif isinstance(item, CellType):
        return [item.cell_contents]
    elif not hasattr(item, "__dict__") or any(getattr(kind, "__slots__", ()) for kind in type(item).__mro__):
        return None
    else:
        parts = []
    for name, value in getattr(item, "__dict__", {}).items():
        if type(value) not in _EMPTY or value:  # a module has a dozen empty ones
            parts += name, value
    return parts


def _device_of(outputs: Any) -> torch.device:
    found = (leaf.device for leaf in leaves_of(outputs) if isinstance(leaf, torch.Tensor))
    return next(found, torch.device("cpu"))


def _to_fp32(leaf: Any) -> Any:
    return leaf.float() if isinstance(leaf, torch.Tensor) and leaf.dtype in REDUCED.values() else leaf
