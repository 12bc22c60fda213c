"""BatchNorm's running statistics, computed again for other weights by one pass over a loader."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import DataLoader

from engine_core.batch import move_batch
from engine_core.errors import ArgumentError, ArgumentTypeError
from engine_core.randomness import load_generator, preserve_generators, state_of_generator
from engine_core.trainer import own_generators

from .weights import bare, plain_name

__all__ = ["check_loader", "recompute_statistics", "trained_norms"]

_PARTS = ("running_mean", "running_var")


def check_loader(given: Any) -> Any:
    """Return it if it is None, or can give its batches again and again.

    Raises:
        ArgumentTypeError: (a TypeError) for anything else, such as an iterator.
    """
    if given is not None and (not isinstance(given, Iterable) or isinstance(given, (Iterator, str))):
        raise ArgumentTypeError(
            f"update_bn={given!r:.80} ({type(given).__name__}) has to be a loader that starts over for each pass, such "
            "as a DataLoader or a list of batches, or None"
        )
    return given


def trained_norms(model: nn.Module) -> list[str]:
    """Return the names of the BatchNorm layers whose running statistics follow the batches, as frozen ones don't."""
    named = [(plain_name(path), module) for path, module in bare(model).named_modules()]
    norms = [(name, module) for name, module in named if isinstance(module, _BatchNorm) and module.training]
    return [name for name, module in norms if module.running_mean is not None]


def recompute_statistics(
    model: nn.Module, names: Collection[str], loader: Iterable[Any], forward: Callable[[Any], object]
) -> dict[str, torch.Tensor]:
    """Return the running statistics of the BatchNorm layers of these names, by name: the means over the batches.

    These layers are in training mode and all others in eval mode, so dropout, queues and spectral norms do what they do
    in an evaluation. Modes, statistics and generators are put back; whoever reads the loader too is not disturbed.
    """
    norms: dict[str, Any] = {
        plain_name(path): m for path, m in bare(model).named_modules() if plain_name(path) in names
    }
    device, batches = next(model.parameters()).device, 0
    with _in_training_mode(model, [*norms.values()]), _apart(loader, device) as own, torch.no_grad():
        for batch in own:
            forward(move_batch(batch, device))
            batches += 1
        found = {f"{name}.{part}": getattr(norms[name], part) for name in norms for part in _PARTS}
    if not batches:
        raise ArgumentError("update_bn: the loader gave no batches; give one that starts over for each pass")
    return found


@contextmanager
def _in_training_mode(model: nn.Module, norms: list[Any]) -> Iterator[None]:
    """Let these norms take the mean over all batches, in buffers that are made for it: a graph may hold their own."""
    modes = [(module, module.training) for module in model.modules()]
    kept = [(norm, norm.momentum, dict(norm.named_buffers(recurse=False))) for norm in norms]
    try:
        model.eval()
        for norm, _, buffers in kept:
            for name, buffer in buffers.items():
                setattr(norm, name, buffer.clone())
            norm.training, norm.momentum = True, None
            norm.reset_running_stats()
        yield
    finally:
        for norm, momentum, buffers in kept:
            norm.momentum = momentum
            for name, buffer in buffers.items():
                setattr(norm, name, buffer)
        for module, mode in modes:
            module.training = mode


@contextmanager
def _apart(loader: Any, device: torch.device) -> Iterator[Any]:
    """Give a loader whose passes leave no trace in the given one, nor in any generator."""
    own = loader
    if isinstance(loader, DataLoader):  # persistent workers are those of one pass at a time, perhaps of training
        own = copy.copy(loader)
        own._iterator = None  # noqa: SLF001  torch resets a copy of a loader in no other way
    states = [(generator, state_of_generator(generator)) for generator in own_generators(loader)]
    try:
        with preserve_generators(device):
            yield own
    finally:
        for generator, state in states:
            load_generator(generator, state)
