"""Check the Trainer's arguments, and bring them into one shape."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset

from ..errors import ArgumentError, ArgumentTypeError
from ..parallel import Parallel
from ..registry import Registry
from ..state import length_of
from ..time import as_number


def check_model(model: Any) -> torch.nn.Module:
    """Return the model if it can be trained."""
    if isinstance(model, type) or not isinstance(model, torch.nn.Module):
        hint = f"; write {model.__name__}()" if isinstance(model, type) else ""
        raise ArgumentTypeError(f"model has to be a torch.nn.Module, not {model!r}{hint}")
    return model


def check_loader(loader: Any, what: str) -> Any:
    """Return the loader if it can give batches."""
    if isinstance(loader, (type, str)) or not (hasattr(loader, "__iter__") or hasattr(loader, "__getitem__")):
        raise ArgumentTypeError(f"{what} is {loader!r}; it has to be an iterable of batches, such as a DataLoader")
    if isinstance(loader, Dataset) and not isinstance(loader, IterableDataset):
        raise ArgumentTypeError(
            f"{what} is the dataset {type(loader).__name__}, which gives single samples; "
            f"write DataLoader(dataset, batch_size=...), with batch_size=None if it gives whole batches"
        )
    if length_of(loader) == 0:
        raise ArgumentError(f"{what} is empty; with drop_last=True the data has to fill at least one batch")
    return loader


def as_loaders(dataloader: Any) -> dict[str, Iterable[Any]]:
    """Return evaluation loaders by label; a single loader gets the label `eval`."""
    if dataloader is None:
        return {}
    loaders = dict(dataloader) if isinstance(dataloader, Mapping) else {"eval": dataloader}
    for label, loader in loaders.items():
        if not isinstance(label, str) or not label or "/" in label:
            raise ArgumentError(f"an evaluation loader's label has to be a string without '/', not {label!r}")
        check_loader(loader, f"the evaluation loader {label!r}")
    return loaders


def check_positive(value: Any, what: str, kind: type[int | float]) -> Any:
    """Return a number that is None or positive."""
    value = as_number(value)
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, kind)) or not value > 0):
        raise ArgumentError(f"{what} has to be a positive {kind.__name__} or None, not {value!r}")
    return value


def progress_bar(given: object, callbacks: Sequence[Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the plugin that shows progress, if it is wanted; `auto` leaves it to one that is among the callbacks."""
    if not isinstance(given, bool) and given not in ("auto", "lines"):
        raise ArgumentError(f"progress_bar has to be 'auto', 'lines', True or False, not {given!r}")
    if given is False or (given == "auto" and (sys.stderr is None or not sys.stderr.isatty())):
        return []
    is_there = any(type(callback) is Registry.scan().load("callbacks", "progress_bar") for callback in callbacks)
    return [] if given == "auto" and is_there else [("progress_bar", {"show": given})]


def choose_device(given: str | torch.device, model: torch.nn.Module, spread: Parallel | None = None) -> torch.device:
    """Return the device: `auto` is the model's own unless that is the CPU, else the best, a rank's own on CUDA."""
    homes: dict[torch.device, str] = {}
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        homes.setdefault(tensor.device, name)
    away = {device: name for device, name in homes.items() if device.type != "cpu"}
    if len(homes) > 1:
        where = ", ".join(f"{name} on {device}" for device, name in homes.items())
        raise ArgumentError(f"the model is spread over several devices ({where}); move it with model.to(...)")
    if any(device.type == "meta" for device in away):
        raise ArgumentError("the model is on the meta device and has no values; give it some with model.to_empty(...)")
    if given == "auto":
        cuda = "cuda" if spread is None else f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
        best = (d for d in map(torch.device, (cuda, "mps")) if _is_available(d))
        return next(iter(away), None) or next(best, torch.device("cpu"))
    try:
        device = torch.device(given)
    except (RuntimeError, TypeError) as error:
        raise ArgumentError(f"device {given!r} is not 'auto', 'cpu', 'cuda' or 'mps'") from error
    if device.type != "cpu" and not _is_available(device):
        raise ArgumentError(f"device {str(device)!r} is not available here; use 'auto' or 'cpu'")
    for home in away:
        if home.type != device.type or device.index not in (None, home.index):
            raise ArgumentError(f"the model is on {home} and device is {str(device)!r}; move it with model.to(...)")
        return home
    return device


def _is_available(device: torch.device) -> bool:
    if device.type == "cuda":
        return (device.index or 0) < torch.cuda.device_count()
    return device.type == "mps" and torch.backends.mps.is_available()


def new_name() -> str:
    """Return a name for a run, from date, time and randomness outside the run's generators."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
