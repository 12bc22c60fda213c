"""The model that a training leaves: its weights in the run's folder, and a model with them again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from ..checkpoint import (
    MODEL,
    RUN_CHECKPOINTS,
    check_which,
    clock_of,
    has_checkpoint,
    load,
    read_about,
    read_resolved,
    read_weights,
    with_average,
    write_weights,
)
from ..errors import CheckpointError
from ..manifest import NAME as MANIFEST
from ..manifest import read_json
from ..trainer import Trainer, copy_weights, find_average, load_weights
from .rebuilding import Source, remake_model

AVERAGE = "model-average.safetensors"


def write_model(trainer: Trainer, folder: Path) -> tuple[Path, Path | None]:
    """Write the weights to `model.safetensors`, and where an algorithm averages them, those beside it.

    Raises:
        CheckpointError: if they can't be written.
    """
    now = trainer.state.timestamp
    about = {"epoch": str(now.epoch), "batch": str(now.batch)}
    weights = copy_weights(trainer.state.model)
    write_weights(folder / MODEL, weights, about)
    average = find_average(trainer.engine)
    if average is None:
        return folder / MODEL, None
    write_weights(folder / AVERAGE, with_average(weights, average.weights), {**about, "algorithm": average.registered})
    return folder / MODEL, folder / AVERAGE


def remove_model(folder: Path) -> None:
    """Remove both files, before the run trains on and they are no longer what it left."""
    for name in (MODEL, AVERAGE):
        (folder / name).unlink(missing_ok=True)


def load_model(
    path: Path | str,
    model: torch.nn.Module | Callable[[], torch.nn.Module] | None = None,
    *,
    weights: str = "evaluated",
    trust: bool = False,
) -> torch.nn.Module:
    """Return a trained model on the CPU, in eval mode.

    Surgery is done again: the installed algorithms of the run with the tag `surgery` change the model before the
    weights are loaded.

    Args:
        path: a run's folder, a checkpoint, or the folder of a saver, for its latest.
        model: a module with the architecture of the training, or what makes one; None: what the run's config names.
        weights: `evaluated`, which are the average where an algorithm kept one, or `trained`.
        trust: without `model`, import and call what the config in the folder names: that runs code that whoever wrote
            the folder chose.

    Raises:
        ArgumentError: (a ValueError) for an impossible value of `weights`.
        CheckpointError: if there are no weights, or they don't fit the model.
        EngineError: if neither `model` nor trust is given, or the folder does not say how to make the model.
        PluginError: if an algorithm that changed the model is not installed.

    Example:
        >>> import tempfile
        >>> from engine_core import Trainer
        >>> data = [(torch.ones(4, 2), torch.ones(4, 1))]
        >>> net = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        >>> savers = [("checkpoint_saver", {"folder": tempfile.mkdtemp()})]
        >>> given = {"loss_fn": torch.nn.MSELoss(), "optimizers": optimizer, "callbacks": savers}
        >>> with Trainer(net, data, max_duration="1ep", **given) as trainer:
        ...     trainer.fit()
        >>> loaded = load_model(savers[0][1]["folder"], lambda: torch.nn.Linear(2, 1))
        >>> torch.equal(loaded.weight, net.weight), loaded.training
        (True, False)
    """
    found = find_weights(Path(path), check_which(weights))
    made = remake_model(found.source, model, trust=trust)
    load_weights(made, found.tensors, strict=True, casts=True)
    return made.eval()


class Found(NamedTuple):
    """Weights by name, and what is said about them where they were found.

    Args:
        weights: `trained`, or the registered name of the algorithm that averaged them.
        step, epoch: how many batches and epochs were complete.
    """

    tensors: Mapping[str, torch.Tensor]
    source: Source
    weights: str
    step: int
    epoch: int


def find_weights(path: Path, weights: str) -> Found:
    """Return weights from a run's own file, or else from a checkpoint.

    Raises:
        CheckpointError: if there are none, or they are damaged.
    """
    is_run = (path / MANIFEST).is_file() and not (path / "state.json").exists()
    if is_run and (path / MODEL).is_file():
        file = path / (AVERAGE if weights == "evaluated" and (path / AVERAGE).is_file() else MODEL)
        tensors, about = load(file), read_about(file)
        clock = [int(text) if (text := about.get(unit, "")).isdecimal() else 0 for unit in ("batch", "epoch")]
        return Found(tensors, Source(path, read_json(path / MANIFEST)), about.get("algorithm", "trained"), *clock)
    if is_run and not has_checkpoint(path / RUN_CHECKPOINTS):
        raise CheckpointError(f"{str(path)!r} holds no model: its training did not end, and no checkpoint was saved")
    folder, (found, manifest) = read_resolved(path, lambda folder: read_weights(folder, weights))
    average, at = manifest.get("average"), clock_of(manifest)
    name = "trained" if average is None or weights == "trained" else str(average.get("registered"))
    return Found(found, Source(folder, manifest), name, at["batch"], at["epoch"])
