"""Weights without the rest of a run: read from a checkpoint or a file, and written to a file. Knows no model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch

from ..errors import ArgumentError, CheckpointError, did_you_mean
from ..files import replacing
from .reading import MANIFEST, STATE, Checkpoint, open_content
from .tensor_file import Readable, StoredTensor, TensorFile, save
from .tree import restore

_T = TypeVar("_T")

_PARALLEL = "module."
WEIGHTS = ("evaluated", "trained")
"""The weights that evaluations used, which are the average where an algorithm keeps one; and those of training."""


def check_which(weights: str) -> str:
    """Return `evaluated` or `trained`; raise an ArgumentError for anything else."""
    if weights not in WEIGHTS:
        raise ArgumentError(f"weights={weights!r} has to be 'evaluated' or 'trained'{did_you_mean(weights, WEIGHTS)}")
    return weights


def read_weights(folder: Path, weights: str = "evaluated") -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the weights in a checkpoint with what else was in the model's state_dict, by name, and its manifest."""
    opened = open_content(folder)
    tensors = {name: it if isinstance(it, torch.Tensor) else it.read() for name, it in _chosen(opened, weights).items()}
    # Modules name their extra state themselves, and what tensors are in it is under these names.
    named = {name: stored.read() for name, stored in opened.tensors.items() if name.startswith("model.")}
    extra = restore(opened.state.get("model", {}), named)
    if not isinstance(extra, dict):
        raise CheckpointError(f"the checkpoint {str(folder)!r} has {extra!r:.80} for the model's extra state")
    return {**tensors, **extra}, dict(opened.manifest)


def _chosen(opened: Checkpoint, weights: str) -> dict[str, StoredTensor | torch.Tensor]:
    """Return the weights; a tensor whose dimensions have an order of their own was read when the states were."""
    if check_which(weights) == "trained":
        return dict(opened.model)
    return with_average(opened.model, opened.average)


def read_about(file: Path) -> dict[str, str]:
    """Return what the header of a file of weights says about them."""
    return TensorFile(file).about


def with_average(weights: Mapping[str, _T], average: Mapping[str, _T]) -> dict[str, _T]:
    """Return a model's weights with those of the average, all of which it has to have, in their places."""
    places = match_names(weights, average)
    if lost := [name for name in average if name not in places.values()]:
        raise CheckpointError(f"the average has {lost[0]!r:.200}, which is not a weight of the model")
    return {name: average[places[name]] if name in places else value for name, value in weights.items()}


def match_names(names: Iterable[str], given: Iterable[str]) -> dict[str, str]:
    """Return, for a model's names of weights, those given that differ at most by wrappers, whichever of them has more.

    The wrappers are those of torch.compile, anywhere, and of DistributedDataParallel and DataParallel, around all.
    """
    given = set(given)
    own = {name: _uncompiled(name) for name in names}
    theirs = {_uncompiled(name): name for name in given}
    inside = {_uncompiled(name).removeprefix(_PARALLEL): name for name in given}
    ways = [(own, theirs)]
    if all(name.startswith(_PARALLEL) for name in own.values()):
        ways.append(({name: plain.removeprefix(_PARALLEL) for name, plain in own.items()}, theirs))
    if all(name.startswith(_PARALLEL) for name in theirs):
        ways.append((own, inside))
    found = max(ways, key=lambda way: len(way[1].keys() & way[0].values()))  # of equals the first
    same = given if found is ways[0] else set()
    return {name: name if name in same else found[1][plain] for name, plain in found[0].items() if plain in found[1]}


def _uncompiled(name: str) -> str:
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


def write_weights(
    file: Path, weights: Mapping[str, torch.Tensor | Readable], about: Mapping[str, str] | None = None
) -> None:
    """Write weights to a file of their own, with `about` in its header; afterwards it is whole, or as it was before.

    What is not a tensor yet is read one after the other, when it is written.
    """
    try:
        with replacing(file) as beside:
            save(beside, weights, about)
    except OSError as error:
        raise CheckpointError(f"{str(file)!r} can't be written: {error}") from error


def export_weights(folder: Path, to: Path, weights: str = "evaluated") -> None:
    """Write the weights in a checkpoint to a safetensors file of their own, under their names in the model.

    Args:
        weights: `evaluated`, which takes the average where the run had one, or `trained`.

    Raises:
        CheckpointError: if the folder is not a checkpoint, or `to` exists, lies in a checkpoint, or can't be written.
    """
    for parent in to.absolute().parents:
        if (parent / MANIFEST).exists() and (parent / STATE).exists():
            place = f"in the checkpoint {str(parent)!r}, which a further file would spoil"
            raise CheckpointError(f"{str(to)!r} is {place}: choose another folder")
    found = _chosen(open_content(folder), weights)
    if to.exists():
        raise CheckpointError(f"{str(to)!r} is there already and is left as it is: choose another file")
    write_weights(to, found)
