"""A value's content as one digest per leaf: equal digests, equal bits. Draws no random numbers, changes nothing."""

from __future__ import annotations

import dataclasses
import enum
import types
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from engine_core.needs import WRITABLE
from engine_core.observed import ObservedList
from engine_core.state import State

from .digest import digest_bytes, digest_tensor, parts_of

Digests = dict[str, str]
"""Digests by the path of the leaf: `[0]`, `labels`, `block.0.weight`, `[0]/param_groups[0]/lr`; "" for the whole."""

_PLAIN: tuple[type, ...] = (type(None), bool, int, float, complex, str, bytes, range, slice, enum.Enum)
_PLAIN += (torch.dtype, torch.device, torch.layout, torch.memory_format)
_OPAQUE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_TENSOR_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_OPTIMIZER_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
_SHOWN = 80  # characters; a longer plain value is shown as a digest


def fingerprint(value: Any) -> Digests:
    """Return the digest of each leaf of a batch, model, optimizer, scheduler, or whatever else a State field holds.

    A tensor counts by dtype, shape, device, `requires_grad`, whether gradients flow on through it, its hooks and every
    bit of its content and gradient; a parameter also by identity, as do functions and objects that show nothing else.
    A module counts by type, public attributes, training flag, parameters, buffers and hooks, an optimizer by its
    groups, its state and its step hooks. An equal copy of anything else has equal digests.

    Example:
        >>> before = fingerprint({"x": torch.zeros(2), "id": ["a", "b"]})
        >>> changed_leaves(before, fingerprint({"x": -torch.zeros(2), "id": ["a", "b"]}))
        ('x',)
    """
    reader = _Reader()
    leaves = reader.read(value)
    reader.fetch()
    return leaves


def fingerprint_state(state: State, fields: Iterable[str] = WRITABLE) -> dict[str, Digests]:
    """Return the digests of the State fields that algorithms may write, by field.

    Example:
        >>> fingerprint_state(State(loss=0.5), ["batch", "loss"])
        {'batch': {'': 'None'}, 'loss': {'': '0.5'}}
    """
    reader = _Reader()
    read = {}
    for name in fields:
        value = getattr(state, name)
        read[name] = reader.read(list(ObservedList.of(value)) if name in ("optimizers", "schedulers") else value)
    reader.fetch()
    return read


def changed_leaves(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """Return the paths of the leaves that differ, came or went, in their order."""
    return tuple(leaf for leaf in {**before, **after} if before.get(leaf) != after.get(leaf))


def tensors_of(value: Any) -> dict[str, torch.Tensor]:
    """Return the tensors of a value by the paths that `fingerprint` gives them, without reading their content."""
    reader = _Reader(digests=False)
    reader.read(value)
    return reader.tensors


class _Reader:
    """Reads one or several values, digesting a tensor that occurs twice only once."""

    def __init__(self, *, digests: bool = True) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._digests = digests
        self._leaves: Digests = {}
        self._known: dict[int, tuple[torch.Tensor, str | torch.Tensor]] = {}
        self._awaited: list[tuple[Digests, str, torch.Tensor]] = []
        self._entered: set[int] = set()

    def read(self, value: Any) -> Digests:
        """Return the digests of a value; those of tensors on a GPU are complete after `fetch`."""
        leaves: Digests = {}
        self._leaves = leaves
        self._walk(value, "")
        return leaves

    def fetch(self) -> None:
        """Complete the digests that were computed on a GPU, with one transfer per GPU."""
        for device in {digest.device for _, _, digest in self._awaited}:
            awaited = [entry for entry in self._awaited if entry[2].device == device]
            fetched = torch.stack([digest for _, _, digest in awaited]).tolist()
            for (leaves, path, _), digest in zip(awaited, fetched, strict=True):
                leaves[path] += f" {digest:x}"

    def _walk(self, value: Any, path: str, *, in_object: bool = False) -> None:
        """Read a value; objects inside an object of unknown type count by identity only."""
        if isinstance(value, torch.Tensor):
            self._tensor(value, path)
        elif isinstance(value, _PLAIN):
            self._leaves[path] = _shortened(repr(value))
        elif id(value) in self._entered:
            self._leaves[path] = _identity(value)
        else:
            self._entered.add(id(value))
            if not self._container(value, path, in_object=in_object):
                if in_object or isinstance(value, _OPAQUE):
                    self._leaves[path] = _identity(value)
                elif isinstance(value, torch.nn.Module):
                    self._model(value, path)
                elif isinstance(value, torch.optim.Optimizer):
                    self._optimizer(value, path)
                else:
                    self._object(value, path)
            self._entered.discard(id(value))

    def _container(self, value: Any, path: str, *, in_object: bool) -> bool:
        """Read a value if it is a container, and return whether it is."""
        if isinstance(value, Mapping):
            self._mapping(value, path, in_object=in_object)
        elif isinstance(value, (list, tuple, deque)):
            self._sequence(value, path, in_object=in_object)
        elif isinstance(value, (set, frozenset)):
            self._leaves[path] = _shortened(f"{_type_of(value)} {sorted(map(repr, value))}")
        elif callable(getattr(type(value), "tobytes", None)):
            form = (getattr(value, "dtype", ""), getattr(value, "shape", ""))
            self._leaves[path] = f"{_type_of(value)} {form} {digest_bytes(value.tobytes()) if self._digests else ''}"
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            self._attributes(value, [f.name for f in dataclasses.fields(value)], path, in_object=in_object)
        elif isinstance(value, Collection) and not isinstance(value, (*_OPAQUE, torch.nn.Module)):
            self._collection(value, path, in_object=in_object)
        else:
            return False
        return True

    def _mapping(self, value: Mapping[Any, Any], path: str, *, in_object: bool) -> None:
        self._leaves[path] = f"{_type_of(value)} {len(value)}"
        for place, key in enumerate(value):
            name = key if isinstance(key, str) else f"[{repr(key) if isinstance(key, _PLAIN) else place}]"
            self._walk(value[key], f"{path}/{name}" if path else name, in_object=in_object)

    def _collection(self, value: Collection[Any], path: str, *, in_object: bool) -> None:
        """Read an unknown container by its attributes, as reading its items may do anything; if none, its items."""
        if callable(getattr(type(value), "state_dict", None)) or _names_in(value):
            self._object(value, path)
        elif isinstance(value, AbstractSet):
            self._leaves[path] = _shortened(f"{_type_of(value)} {sorted(map(repr, value))}")
        else:
            self._sequence(value, path, in_object=in_object)

    def _sequence(self, value: Collection[Any], path: str, *, in_object: bool) -> None:
        """Read each item; plain values form one leaf."""
        if value and all(isinstance(item, _PLAIN) for item in value):
            self._leaves[path] = _shortened(f"{_type_of(value)} {list(value)!r}")
            return
        self._leaves[path] = f"{_type_of(value)} {len(value)}"
        names = getattr(value, "_fields", None) or [f"[{place}]" for place in range(len(value))]
        for name, item in zip(names, value, strict=False):
            self._walk(item, f"{path}{name}" if name[0] == "[" or not path else f"{path}.{name}", in_object=in_object)

    def _attributes(self, value: Any, names: Iterable[str], path: str, *, in_object: bool) -> None:
        self._leaves[path] = _type_of(value)
        for name in names:
            if hasattr(value, name):
                self._walk(getattr(value, name), f"{path}.{name}" if path else name, in_object=in_object)

    def _object(self, value: Any, path: str) -> None:
        if callable(getattr(type(value), "state_dict", None)):
            self._walk(value.state_dict(), path, in_object=True)
            self._leaves[path] = _type_of(value)
            return
        names = _names_in(value)
        self._attributes(value, names, path, in_object=True)
        if not names:
            self._leaves[path] = _identity(value)

    def _optimizer(self, optimizer: torch.optim.Optimizer, path: str) -> None:
        self._leaves[path] = _type_of(optimizer)
        head = f"{path}/" if path else ""
        numbers: dict[int, int] = {}
        for place, group in enumerate(optimizer.param_groups):
            for parameter in group["params"]:
                numbers.setdefault(id(parameter), len(numbers))
            shown = {**group, "params": " ".join(map(_identity, group["params"]))}
            self._walk(shown, f"{head}param_groups[{place}]")
        for parameter, state in optimizer.state.items():
            self._walk(state, f"{head}state[{numbers.get(id(parameter), 'other')}]")
        self._hooks(optimizer, _OPTIMIZER_HOOKS, head)

    def _hooks(self, value: Any, names: Iterable[str], head: str) -> None:
        for name in names:
            if own := getattr(value, name, None):
                self._leaves[f"{head}{name[1:]}"] = " ".join(map(_identity, own.values()))

    def _model(self, model: torch.nn.Module, path: str) -> None:
        for name, module in model.named_modules(prefix=path):
            head = f"{name}." if name else ""
            self._leaves[name] = _type_of(module)
            for attribute, value in vars(module).items():
                if attribute[0] != "_" and isinstance(value, (torch.Tensor, tuple, *_PLAIN)):
                    self._walk(value, f"{head}{attribute}", in_object=True)
                elif attribute[0] != "_":
                    self._leaves[f"{head}{attribute}"] = _identity(value)
            self._hooks(module, _HOOKS, head)
            for tensors in (module._parameters, module._buffers):  # noqa: SLF001  named_parameters leaves out None
                for tensor_name, tensor in tensors.items():
                    self._walk(tensor, f"{head}{tensor_name}")

    def _tensor(self, tensor: torch.Tensor, path: str) -> None:
        self.tensors[path] = tensor
        if is_lazy(tensor):
            self._leaves[path] = _identity(tensor)
            return
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001  the documented name
            kind = _identity(tensor) if isinstance(tensor, torch.nn.Parameter) else _type_of(tensor)
            gradients = tensor.requires_grad if tensor.is_leaf else "flow on"
            self._leaves[path] = f"{kind} {tensor.dtype} {tensor.device} {gradients}"
            self._hooks(tensor, _TENSOR_HOOKS, f"{path}." if path else "")
            parts, grad = parts_of(tensor), tensor.grad if tensor.is_leaf else None
            if parts is None:
                self._leaves[path] += f" {tuple(tensor.shape)}"
                if self._digests and not tensor.is_meta:
                    self._content(tensor, path)
        for name, part in (parts or {}).items():
            self._tensor(part, f"{path}.{name}" if path else name)
        if grad is not None:
            self._tensor(grad, f"{path}.grad" if path else "grad")

    def _content(self, tensor: torch.Tensor, path: str) -> None:
        known = self._known.get(id(tensor))
        if known is None:  # keeping the tensor keeps its id unique
            known = self._known[id(tensor)] = (tensor, digest_tensor(tensor))
        if isinstance(known[1], str):
            self._leaves[path] += f" {known[1]}"
        else:
            self._awaited.append((self._leaves, path, known[1]))


def _names_in(value: Any) -> list[str]:
    """Return the names of an object's own attributes."""
    slots = [cls.__dict__.get("__slots__", ()) for cls in type(value).__mro__]
    names = [name for own in slots for name in ([own] if isinstance(own, str) else own)]
    return [*names, *getattr(value, "__dict__", ())]


def _type_of(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _identity(value: Any) -> str:
    return f"{_type_of(value)}@{id(value):x}"


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:20]}... {digest_bytes(text.encode())}"
