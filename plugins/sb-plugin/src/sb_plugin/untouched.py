"""What a scoring forward would change, held: buffers, modes and global generators."""
# ruff: noqa: SLF001  torch's private state is what has to be restored, and its public ways make copies

from __future__ import annotations

import random
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeGuard, cast

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.modules.module import register_module_forward_pre_hook

from engine_core.errors import ArgumentError

__all__ = ["fresh_seed", "frozen_buffers", "own_randomness"]

# These use the statistics of the batch, and do not touch the running ones, if `track_running_stats` is off.
_OBEDIENT = {_BatchNorm.forward, nn.SyncBatchNorm.forward}


class _Held(NamedTuple):
    """A buffer as it was."""

    home: dict[str, torch.Tensor | None]
    name: str
    buffer: torch.Tensor
    copy: torch.Tensor
    version: int | None
    """None if it may change without its version changing, as running statistics do in `F.batch_norm`."""


@contextmanager
def frozen_buffers(model: object, bn: str = "frozen") -> Iterator[None]:
    """Keep every buffer of `model` bit-equal, above all running statistics, whatever its forward does.

    Each module keeps its mode, train or eval.
    `model` may be any callable: the modules it calls are found as they are called.

    Args:
        bn: `"frozen"`: BatchNorm normalises with the statistics of the batch, as in the training step, but does not
            record them; `"train"`: it records them; `"eval"`: the whole model runs in eval mode.
    """
    hold, handle = _Hold(records_statistics=bn == "train"), None
    root = model if isinstance(model, nn.Module) else getattr(model, "__self__", None)
    try:
        if isinstance(root, nn.Module):
            hold.tree(root)
            if bn == "eval":
                root.eval()
        if not isinstance(model, nn.Module):
            handle = register_module_forward_pre_hook(lambda module, _: hold.tree(module))
        yield
    finally:
        if handle is not None:
            handle.remove()
        hold.release()


class _Hold:
    """The modules that are held."""

    def __init__(self, *, records_statistics: bool = False) -> None:
        self._records_statistics = records_statistics
        self._modes: dict[nn.Module, bool] = {}
        self._norms: list[nn.Module] = []
        self._buffers: list[_Held] = []

    def tree(self, root: nn.Module) -> None:
        """Hold a module and all below it; `root.modules()` costs twice as much, as it makes names."""
        if root in self._modes:
            return
        modes, left = self._modes, [root]
        modes[root] = root.training
        while left:
            module = left.pop()
            if module._buffers:
                self._keep(module)
            for child in module._modules.values():
                if child is not None and child not in modes:
                    modes[child] = child.training
                    left.append(child)

    def _keep(self, module: nn.Module) -> None:
        """Hold the buffers of a module, without those of its children."""
        if self._records_statistics and isinstance(module, _BatchNorm):
            return
        if isinstance(module, LazyModuleMixin):  # until its first forward
            raise ArgumentError(
                f"the buffers of a {type(module).__name__} have no values before its first forward, so scoring can't "
                "leave them as they are: run the model on a batch before training, or begin with start above 0"
            )
        if _obeys(module):
            if module.track_running_stats:  # unused in eval mode, but a forward may set the mode
                self._norms.append(module)
                module.__dict__["track_running_stats"] = False  # past Module.__setattr__, which is slow
            return
        silent = "running_mean" in module._buffers
        for name, buffer in module._buffers.items():
            if buffer is not None:
                version = None if silent else buffer._version
                self._buffers.append(_Held(module._buffers, name, buffer, buffer.detach().clone(), version))

    def release(self) -> None:
        """Restore what was changed, and write to nothing else: a graph may have saved it for its backward pass."""
        for module, training in self._modes.items():
            if module.training is not training:
                module.training = training
        for norm in self._norms:
            norm.__dict__["track_running_stats"] = True
        with torch.no_grad():
            for home, name, buffer, copy, version in self._buffers:
                if version is None or buffer._version != version:
                    buffer.copy_(copy)
                if name not in home or home[name] is not buffer:
                    home[name] = buffer


def _obeys(module: nn.Module) -> TypeGuard[_BatchNorm]:
    return isinstance(module, _BatchNorm) and type(module).forward in _OBEDIENT and "forward" not in module.__dict__


@contextmanager
def own_randomness(seed: int) -> Iterator[None]:
    """Seed torch's global generators with `seed`, and restore those of torch, NumPy and Python afterwards.

    Dropout takes no generator of its own, so the global ones are borrowed.
    """
    generators, numpy = _torch_generators(), cast("Any", sys.modules.get("numpy"))
    restores = [_restore(generator.set_state, generator.get_state()) for generator in generators]
    restores.append(_restore(random.setstate, random.getstate()))
    if numpy is not None:
        restores.append(_restore(numpy.random.set_state, _state_of(numpy)))
    try:
        for generator in generators:
            generator.manual_seed(seed)
        yield
    finally:
        for restore in restores:
            restore()


def _restore(setter: Callable[[Any], object], state: Any) -> Callable[[], object]:
    return lambda: setter(state)


def _state_of(numpy: Any) -> dict[str, Any]:
    """Return the state of NumPy's global generator, in a form that is fast to restore."""
    state: dict[str, Any] = numpy.random.get_state(legacy=False)
    if state["bit_generator"] == "MT19937":  # it reads its 624 words one by one, ten times as fast from a list
        state["state"]["key"] = state["state"]["key"].tolist()
    return state


def _torch_generators() -> list[torch.Generator]:
    """Return the global generators of all devices in use; CUDA has none before its first use."""
    generators = [torch.default_generator, *torch.cuda.default_generators]
    if torch.backends.mps.is_available():
        generators.append(torch.mps._get_default_mps_generator())
    return generators


def fresh_seed(generator: torch.Generator) -> int:
    """Return a seed that differs whenever `generator` has been drawn from, without waiting for a device."""
    if generator.device.type == "cpu":
        return int(torch.randint(2**31, (), generator=generator))
    return zlib.crc32(bytes(generator.get_state().tolist()))
