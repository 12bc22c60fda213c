"""What a replacement takes over from the module it replaces: device, dtype, flags, hooks."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from engine_core.errors import ArgumentError

from .hooks import has_hooks, machinery_of, move_hooks
from .plan import FLOATS, Replacement, title


class Heritage:
    """Makes replacements match the modules they replace; `former` and `tensors` are what the model had."""

    def __init__(self, former: set[nn.Module], tensors: set[torch.Tensor], model: nn.Module, undo: ExitStack) -> None:
        self._former = former
        self._tensors = tensors
        self._undo = undo
        self._gone = former - set(model.modules())
        self._lost = tensors - tensors_of(model)
        self._fitted: dict[torch.Tensor, torch.Tensor] = {}

    def pass_on(self, item: Replacement) -> None:
        """Give a replacement, and each part of it named like an old part that is gone, what the old ones had."""
        parts = dict(item.new.named_modules())
        predecessors = {"": item.old}
        for path, part in item.old.named_modules():
            heir = parts.get(path)
            if part in self._gone:
                if path and heir is not None and heir not in self._former:
                    predecessors[path] = part
                self._check_loss(item, path, part, heir)
        for path, part in parts.items():
            if part not in self._former:
                predecessor = predecessors.get(path)
                part.training = (predecessor or item.old).training
                self._fit(item, path, part, predecessor)
        for path, part in predecessors.items():
            move_hooks(part, parts[path], _join(item.name, path), self._undo)

    def _check_loss(self, item: Replacement, path: str, part: nn.Module, heir: nn.Module | None) -> None:
        name = title(_join(item.name, path), part)
        kept = () if heir is None else machinery_of(heir)
        lost = [machine for machine in machinery_of(part) if machine not in kept]
        if lost:
            raise ArgumentError(
                f"{name} has {lost[0]}, which {_what(item)} would lose; remove it before the surgery, add it "
                "afterwards, or let the policy keep the module inside the new one"
            )
        if path and has_hooks(part) and (heir is None or heir in self._former):
            raise ArgumentError(
                f"{name} has hooks, but {_what(item)} has no new part {path!r} for them; "
                "register them after the surgery"
            )
        for key, parameter in part.named_parameters(recurse=False):
            hooked = (getattr(parameter, kind, None) for kind in ("_backward_hooks", "_post_accumulate_grad_hooks"))
            if parameter in self._lost and any(hooked):
                raise ArgumentError(
                    f"the parameter {_join(_join(item.name, path), key)!r} has hooks, which {_what(item)} would lose; "
                    "register them after the surgery, or let the policy carry the parameter over"
                )

    def _fit(self, item: Replacement, path: str, part: nn.Module, predecessor: nn.Module | None) -> None:
        """Give new tensors the device, dtype and requires_grad of those they replace."""
        twins = {} if predecessor is None else _own_tensors(predecessor)
        for key, tensor in _own_tensors(part).items():
            if tensor in self._tensors:
                continue
            if tensor not in self._fitted:
                twin = twins.get(key)
                name = _join(_join(item.name, path), key)
                self._fitted[tensor] = self._like(item, name, tensor, twin if twin in self._lost else None)
            if (fitted := self._fitted[tensor]) is not tensor:
                setattr(part, key, fitted)
        if isinstance(part, nn.RNNBase):
            part.flatten_parameters()

    def _like(self, item: Replacement, name: str, tensor: torch.Tensor, twin: torch.Tensor | None) -> torch.Tensor:
        """Return a tensor made to fit; a parameter stays the same object, unless it moves to the meta device."""
        devices, dtypes = item.surroundings.devices, item.surroundings.dtypes
        if twin is not None:
            devices = frozenset({twin.device})
            dtypes = frozenset({twin.dtype}) & FLOATS if tensor.dtype in FLOATS else dtypes
        device = _choose(tensor.device, devices, name, "devices")
        dtype = _choose(tensor.dtype, dtypes, name, "dtypes") if tensor.dtype in FLOATS else tensor.dtype
        if tensor.device.type == "meta" != device.type:
            raise ArgumentError(
                f"the policy made {name!r} on the meta device, but the model is on {device}; make it with values"
            )
        if isinstance(twin, nn.Parameter) and twin.shape == tensor.shape and not twin.requires_grad:
            tensor.requires_grad_(False)
        if (device, dtype) == (tensor.device, tensor.dtype):
            return tensor
        fitted = tensor.detach().to(device, dtype)
        if not isinstance(tensor, nn.Parameter):
            return fitted
        if device.type == "meta":
            return nn.Parameter(fitted, tensor.requires_grad)
        tensor.data = fitted
        return tensor


def _choose(own: Any, allowed: frozenset[Any], name: str, what: str) -> Any:
    """Return the tensor's own if it is allowed, else the only one that is."""
    if not allowed or own in allowed:
        return own
    if len(allowed) > 1:
        raise ArgumentError(
            f"the policy made {name!r} as {own}, but the place has {what} {', '.join(sorted(map(str, allowed)))}; "
            "use one of them in the policy"
        )
    return next(iter(allowed))


def _own_tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    kinds = (module.named_parameters, module.named_buffers)
    return {name: tensor for kind in kinds for name, tensor in kind(recurse=False, remove_duplicate=False)}


def _join(name: str, path: str) -> str:
    return f"{name}.{path}" if name and path else name or path


def _what(item: Replacement) -> str:
    return f"the {type(item.new).__name__} that replaces {item.name!r}"


def tensors_of(model: nn.Module) -> set[torch.Tensor]:
    """Return the parameters and buffers of a model."""
    return {*model.parameters(), *model.buffers()}
