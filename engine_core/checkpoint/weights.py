"""Weights without the rest of a run: read from a checkpoint or a file, and written to a file. Knows no model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from ..errors import ArgumentError, CheckpointError, did_you_mean
from ..files import replacing
from .files import MANIFEST, STATE
from .reading import Opened, Unread, open_content
from .shards import tensors_of_average
from .tensor_file import Readable, Stored, TensorFile, save
from .tree import restore

_T = TypeVar("_T")

_PARALLEL = "module."
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


class Weights(NamedTuple):
    """The weights in a checkpoint by their names in the model, and its manifest.

    Args:
        extra: what else was in the model's state_dict, as `get_extra_state` returned it.
    """

    tensors: dict[str, torch.Tensor]
    extra: dict[str, Any]
    manifest: dict[str, Any]


def read_weights(folder: Path, weights: str = "evaluated") -> Weights:
    """Return the weights in a checkpoint.

    Raises:
        CheckpointError: if the folder is not a checkpoint, or is damaged.
    """
    opened = open_content(folder)
    tensors = {name: stored.read() for name, stored in _chosen(opened, folder, weights).items()}
    return Weights(tensors, _extra_in(opened, folder), dict(opened.manifest))


def _chosen(opened: Opened, folder: Path, weights: str) -> dict[str, Stored]:
    if check_which(weights) == "trained":
        return dict(opened.model)
    average = tensors_of_average(opened.manifest)
    if absent := [key for key in average.values() if key not in opened.tensors]:
        raise CheckpointError(f"{str(folder / MANIFEST)!r} names {absent[0]!r:.80}, which is not in the state")
    return with_average(opened.model, {name: opened.tensors[key] for name, key in average.items()})


def _extra_in(opened: Opened, folder: Path) -> dict[str, Any]:
    extra = restore(opened.state.get("model", {}), Unread(opened.tensors))
    if not isinstance(extra, dict):
        raise CheckpointError(f"the checkpoint {str(folder)!r} has {extra!r:.80} for the model's extra state")
    return extra


def read_about(file: Path) -> dict[str, str]:
    """Return what the header of a file of weights says about them.

    Raises:
        CheckpointError: if it can't be read.
    """
    return TensorFile(file).about


def clock_of(manifest: Mapping[str, Any]) -> dict[str, int]:
    """Return how many epochs and batches were complete when a checkpoint was saved.

    Raises:
        CheckpointError: if its manifest does not say it.
    """
    clock = manifest.get("clock")
    if not isinstance(clock, dict) or not all(type(clock.get(unit)) is int for unit in ("epoch", "batch")):
        raise CheckpointError(f"the checkpoint's manifest has an invalid clock: {clock!r:.80}")
    return clock


def with_average(weights: Mapping[str, _T], average: Mapping[str, _T]) -> dict[str, _T]:
    """Return a model's weights with those of the average in their places.

    Raises:
        CheckpointError: if the average has a weight that the model lacks.
    """
    places = match_names(weights, average)
    if lost := [name for name in average if name not in places.values()]:
        raise CheckpointError(f"the average has {lost[0]!r:.200}, which is not a weight of the model")
    return {name: average[places[name]] if name in places else value for name, value in weights.items()}


def match_names(names: Iterable[str], given: Iterable[str]) -> dict[str, str]:
    """Return, for a model's names of weights, those given that differ at most by wrappers, whichever of them has more.

    The wrappers are those of torch.compile, anywhere, and of DistributedDataParallel and DataParallel, around all.

    Example:
        >>> match_names(["module.bn.weight", "bn.bias"], ["_orig_mod.module.bn.weight", "head"])
        {'module.bn.weight': '_orig_mod.module.bn.weight'}
        >>> match_names(["module.module.weight"], ["module.weight"])
        {'module.module.weight': 'module.weight'}
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

    Raises:
        CheckpointError: if it can't be written.
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
    found = _chosen(open_content(folder), folder, weights)
    if to.exists():
        raise CheckpointError(f"{str(to)!r} is there already and is left as it is: choose another file")
    write_weights(to, found)
