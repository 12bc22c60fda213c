"""The model that a training leaves: its weights in the run's folder, and a model with them again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..arguments import path_of
from ..checkpoint import (
    MODEL,
    RUN_CHECKPOINTS,
    check_which,
    clock_of,
    has_checkpoint,
    load,
    match_names,
    read_about,
    read_resolved,
    read_weights,
    with_average,
    write_weights,
)
from ..errors import CheckpointError
from ..files import read_json
from ..manifest import NAME as MANIFEST
from ..messages import readable
from ..parallel import write_gathered
from ..trainer import Trainer, at_evaluation, copy_weights, find_average, load_weights
from .rebuilding import Source, remake_model

AVERAGE = "model-average.safetensors"
_DIGITS = 19
"""More than a count in a header has; Python refuses to convert very long numbers."""


def write_model(trainer: Trainer, folder: Path) -> tuple[Path, Path | None]:
    """Write the weights to `model.safetensors`, and where an algorithm averages them, those beside it.

    Raises:
        CheckpointError: if they can't be written.
    """
    with at_evaluation(trainer.state.optimizers):
        return _write_both(trainer, folder)


def _write_both(trainer: Trainer, folder: Path) -> tuple[Path, Path | None]:
    now, model = trainer.state.timestamp, trainer.state.model
    about = {"epoch": str(now.epoch), "batch": str(now.batch)}
    weights = copy_weights(model)
    if model is not None and len(weights) < len(model.state_dict()):
        about["extra_state"] = "in the checkpoint"
    average = find_average(trainer.engine)
    averaged = None if average is None else with_average(weights, average.weights)
    if average is not None:
        about["algorithm"] = average.registered

    # The model last: with an average, neither is whole without the other.
    for name, values in ((AVERAGE, averaged), (MODEL, weights)):
        if values is not None:
            write_gathered(trainer.state.ranks, values, partial(_write, folder / name, about))
    return folder / MODEL, None if average is None else folder / AVERAGE


def _write(file: Path, about: Mapping[str, str], weights: Mapping[str, Any]) -> None:
    write_weights(file, weights, about)


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
        path: a run's folder, a checkpoint, or the folder of a saver, for its latest. A `model.safetensors` in one of
            them means the folder that it is in.
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
    found = find_weights(path_of(path), check_which(weights))
    made = remake_model(found.source, model, trust=trust)
    found.load_into(made)
    return made.eval()


class Found(NamedTuple):
    """Weights by name, and what is said about them where they were found.

    Args:
        tensors: what a model's state_dict has, the `extra` state of its modules too.
        weights: `trained`, or the registered name of the algorithm that averaged them.
        step, epoch: how many batches and epochs were complete.
    """

    tensors: Mapping[str, Any]
    source: Source
    weights: str
    step: int
    epoch: int

    def load_into(self, model: torch.nn.Module) -> None:
        """Load the weights into a model, whichever of the two is compiled.

        Raises:
            CheckpointError: if they don't fit.
        """
        names = {saved: own for own, saved in match_names(model.state_dict(), self.tensors).items()}
        tensors = {names.get(name, name): value for name, value in self.tensors.items()}
        load_weights(model, tensors, strict=True, casts=True)


def find_weights(path: Path, weights: str) -> Found:
    """Return weights from a run's own file, or else from a checkpoint.

    Raises:
        CheckpointError: if there are none, or they are damaged.
    """
    if path.name in (MODEL, AVERAGE) and path.is_file():
        path = path.parent
    is_run = (path / MANIFEST).is_file() and not (path / "state.json").exists()
    if is_run and (path / MODEL).is_file():
        return _find_in_run(path, weights)
    if is_run and not has_checkpoint(path / RUN_CHECKPOINTS):
        raise CheckpointError(f"{str(path)!r} holds no model: its training did not end, and no checkpoint was saved")
    folder, (tensors, manifest) = read_resolved(path, lambda folder: read_weights(folder, weights))
    average, at = manifest.get("average"), clock_of(manifest)
    name = "trained" if average is None or weights == "trained" else str(average.get("registered"))
    return Found(tensors, Source(folder, manifest), name, at["batch"], at["epoch"])


def _find_in_run(path: Path, weights: str) -> Found:
    file, about = path / MODEL, read_about(path / MODEL)
    if averaged := weights == "evaluated" and "algorithm" in about:
        file = path / AVERAGE
        if not file.is_file():
            raise CheckpointError(
                f"{str(file)!r}, the average that was evaluated, is missing: restore it, or take what was trained with "
                "weights='trained'"
            )
        if (other := read_about(file)) != about:
            raise CheckpointError(f"{str(file)!r} does not belong to the {MODEL} beside it: {other!r:.200}")
    step, epoch = (_number_in(about, unit, file) for unit in ("batch", "epoch"))
    tensors: dict[str, Any] = {**load(file)}
    if "extra_state" in about:
        tensors = {**_in_checkpoint(path, {"batch": step, "epoch": epoch}), **tensors}
    return Found(tensors, Source(path, _manifest_in(path)), about["algorithm"] if averaged else "trained", step, epoch)


def _number_in(about: Mapping[str, str], unit: str, file: Path) -> int:
    text = about.get(unit, "")
    if not (text.isascii() and text.isdigit() and len(text) < _DIGITS):
        raise CheckpointError(f"{str(file)!r} does not say its {unit}: {readable(repr(text), 80)}")
    return int(text)


def _manifest_in(path: Path) -> dict[str, Any]:
    manifest = read_json(path / MANIFEST, raises=CheckpointError)
    if not isinstance(manifest, dict):
        raise CheckpointError(f"{str(path / MANIFEST)!r} is not a run's manifest: {manifest!r:.80}")
    return manifest


def _in_checkpoint(path: Path, clock: Mapping[str, int]) -> dict[str, Any]:
    """Return the model in the run's latest checkpoint, with what a file of tensors can't hold, if it is as old."""
    if has_checkpoint(path / RUN_CHECKPOINTS):
        _, (found, manifest) = read_resolved(path / RUN_CHECKPOINTS, lambda folder: read_weights(folder, "trained"))
        if {unit: clock_of(manifest)[unit] for unit in clock} == clock:
            return found
    raise CheckpointError(
        f"the model has extra state, which only a checkpoint holds, and {str(path / RUN_CHECKPOINTS)!r} has none of "
        f"batch {clock['batch']}: give the path of a checkpoint"
    )
