"""Weights without the rest of a run: read from a checkpoint or a file, and written to a file. Knows no model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ..errors import ArgumentError, CheckpointError, did_you_mean
from ..messages import readable
from .files import MANIFEST, MODEL, TENSORS, read_content, save

WEIGHTS = ("evaluated", "trained")
"""The weights that evaluations used, which are the average where an algorithm keeps one; and those of training."""


def check_which(weights: str) -> str:
    """Return `evaluated` or `trained`.

    Raises:
        ArgumentError: (a ValueError) for anything else.
    """
    if weights not in WEIGHTS:
        raise ArgumentError(f"weights={weights!r} has to be 'evaluated' or 'trained'{did_you_mean(weights, WEIGHTS)}")
    return weights


def read_weights(folder: Path, weights: str = "evaluated") -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return the weights in a checkpoint by their names in the model, and its manifest.

    Raises:
        CheckpointError: if the folder is not a checkpoint, or is damaged.
    """
    content = read_content(folder)
    place = content.manifest.get("average")
    if place is None or check_which(weights) == "trained":
        return dict(content.model), dict(content.manifest)
    tensors = place.get("tensors") if isinstance(place, dict) else None
    if not isinstance(tensors, dict) or not all(isinstance(key, str) for key in tensors.values()):
        raise CheckpointError(f"{str(folder / MANIFEST)!r} does not say where its average is")
    if absent := [key for key in tensors.values() if key not in content.tensors]:
        raise CheckpointError(f"{str(folder / MANIFEST)!r} names {absent[0]!r:.80}, which is not in {TENSORS}")
    average = {name: content.tensors[key] for name, key in tensors.items()}
    return with_average(content.model, average), dict(content.manifest)


def read_about(file: Path) -> dict[str, str]:
    """Return what the header of a file of weights says about them.

    Raises:
        CheckpointError: if it can't be read.
    """
    try:
        with safe_open(file, framework="pt") as opened:
            return dict(opened.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{str(file)!r} is not a safetensors file: {readable(str(error))}") from error


def clock_of(manifest: Mapping[str, Any]) -> dict[str, int]:
    """Return how many epochs and batches were complete when a checkpoint was saved.

    Raises:
        CheckpointError: if its manifest does not say it.
    """
    clock = manifest.get("clock")
    if not isinstance(clock, dict) or not all(type(clock.get(unit)) is int for unit in ("epoch", "batch")):
        raise CheckpointError(f"the checkpoint's manifest has an invalid clock: {clock!r:.80}")
    return clock


def with_average(weights: Mapping[str, torch.Tensor], average: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a model's weights with those of the average in their places.

    An average names them without the wrappers of torch.compile and DistributedDataParallel.
    """
    return {name: average.get(name, average.get(_plain(name), value)) for name, value in weights.items()}


def _plain(name: str) -> str:
    return ".".join(part for part in name.split(".") if part != "_orig_mod").removeprefix("module.")


def write_weights(file: Path, weights: Mapping[str, torch.Tensor], about: Mapping[str, str] | None = None) -> None:
    """Write weights to a file of their own, with `about` in its header; afterwards it is whole, or as it was before.

    Raises:
        CheckpointError: if it can't be written.
    """
    beside = file.with_name(f".{file.name}.new")
    try:
        save(beside, weights, about)
        beside.replace(file)
    except (OSError, SafetensorError) as error:
        beside.unlink(missing_ok=True)
        raise CheckpointError(f"{str(file)!r} can't be written: {error}") from error


def export_weights(folder: Path, to: Path, weights: str = "evaluated") -> None:
    """Write the weights in a checkpoint to a safetensors file of their own, under their names in the model.

    Args:
        weights: `evaluated`, which takes the average where the run had one, or `trained`.

    Raises:
        CheckpointError: if the folder is not a checkpoint, or `to` exists, lies in a checkpoint, or can't be written.
    """
    for parent in to.absolute().parents:
        if (parent / MANIFEST).exists() and (parent / MODEL).exists() and (parent / TENSORS).exists():
            place = f"in the checkpoint {str(parent)!r}, which a further file would spoil"
            raise CheckpointError(f"{str(to)!r} is {place}: choose another folder")
    found, _ = read_weights(folder, weights)
    if to.exists():
        raise CheckpointError(f"{str(to)!r} is there already and is left as it is: choose another file")
    write_weights(to, found)
