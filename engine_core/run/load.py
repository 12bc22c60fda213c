"""A trained model: its weights found, its architecture made again, and both evaluated as in the training.

What a run's folder says is not trusted.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
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
)
from ..config import Config, ConfigError, build, build_plugin, check_config, override
from ..engine import Engine
from ..errors import (
    ArgumentError,
    ArgumentTypeError,
    CheckpointError,
    CheckpointWarning,
    EngineError,
    PluginError,
    did_you_mean,
)
from ..event import Event
from ..files import read_json
from ..logger import Logger
from ..loop import prepare_to_load
from ..manifest import NAME as MANIFEST
from ..messages import readable, warn
from ..randomness import preserve_generators
from ..registry import Registry
from ..state import LoopControl, State
from ..trainer import load_weights
from .build import make_evaluator
from .result import AVERAGE


class Saved(NamedTuple):
    """Weights by name, and what is said about them and about their run where they were found.

    Args:
        tensors: what a model's state_dict has, the `extra` state of its modules too.
        folder, manifest: a run's manifest, or a checkpoint's, with the folder that it is in.
        weights: `trained`, or the registered name of the algorithm that averaged them.
        step, epoch: how many batches and epochs were complete.
    """

    tensors: Mapping[str, Any]
    folder: Path
    manifest: Mapping[str, Any]
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

    def config(self, remedy: str, *, trust: bool) -> Config:
        """Return the config that the run was made from, whose targets may be imported and called.

        Raises:
            EngineError: without trust, or if a program made the run's Trainer; the message has the remedy.
        """
        values = self.manifest.get("config")
        if not isinstance(values, dict):
            raise EngineError(f"the run in {str(self.folder)!r} was not made from a config: {remedy}")
        config = check_config(values, str(self.folder / MANIFEST))
        if not trust:
            raise EngineError(
                f"{config.model.target!r:.200} and more would be imported and called, because the manifest in "
                f"{str(self.folder)!r} says so: {remedy}, or, if you trust whoever wrote that folder, trust=True"
            )
        return config

    def surgery(self) -> list[dict[str, Any]]:
        """Return the entries of the algorithms that changed the model, in the order in which they did."""
        if "surgery" not in self.manifest:
            raise CheckpointError(
                f"the manifest in {str(self.folder)!r} does not say what changed the model, as those of older versions "
                "of engine-core: make the model, and give it the weights with Trainer(load_weights_only=True)"
            )
        for entry in [*entries] if isinstance(entries := self.manifest["surgery"], list) else [entries]:
            match entry:
                case {"registered": str(), "place": int(), "settings": dict(), "omitted": list()}:
                    continue
            raise CheckpointError(f"the manifest in {str(self.folder)!r} has {entries!r:.80} for surgery")
        return entries  # type: ignore[no-any-return]

    def import_from(self) -> list[str]:
        """Return the folders that the run imported from, without those in the run's folder itself."""
        folders = self.manifest.get("import_from")
        whole = self.folder.resolve()
        if whole.parent.name == RUN_CHECKPOINTS and (whole.parent.parent / MANIFEST).is_file():
            whole = whole.parent.parent
        given = [Path(folder) for folder in folders if isinstance(folder, str)] if isinstance(folders, list) else []
        return [str(f) for f in given if f.is_absolute() and not f.resolve().is_relative_to(whole)]


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
        trust: without `model`, import and call what the config in the folder names, which runs code that the
            folder's author chose.

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
    found = _find_weights(path_of(path), check_which(weights))
    with preserve_generators(torch.device("cpu")), _importing_beside(found, trust=trust and model is None):
        config = None
        if model is None:
            config = found.config("give the model, as in load_model(path, model=Net())", trust=trust)
            model = partial(build, config.model, config.place("model"))
        algorithms = [_algorithm_of(entry, found, config) for entry in found.surgery()]
        made = model() if callable(model) and not isinstance(model, torch.nn.Module) else model
        if not isinstance(made, torch.nn.Module):
            raise ArgumentTypeError(f"model has to be a module, or what makes one, not {made!r:.80}")
        made.to("cpu")
        for algorithm in algorithms:
            state = State(model=made, algorithms=[algorithm], seed=0, loop=LoopControl(awaits_weights=True))
            with Engine(state, Logger()) as engine:
                engine.run_event(Event.INIT)
                prepare_to_load(engine, found.tensors)
            assert state.model is not None
            made = state.model
    found.load_into(made)
    return made.eval()


class Evaluated(NamedTuple):
    """The results of an evaluation by name, the weights they are of, and how long those had been trained."""

    results: Mapping[str, float]
    weights: str
    step: int
    epoch: int


def evaluate(
    path: Path | str,
    config: Config | None = None,
    *,
    data: str | None = None,
    device: str | None = None,
    weights: str = "evaluated",
    trust: bool = False,
) -> Evaluated:
    """Evaluate a trained model on the evaluation loaders of its config.

    Args:
        path: a run's folder, a checkpoint, or the folder of a saver, for its latest.
        config: what makes the model, loss, metrics and loaders; None: the one that the run kept.
        data: the label of the one loader to evaluate on; None: all of them.
        device: overrides the config's.
        weights: `evaluated`, which are the average where an algorithm kept one, or `trained`.
        trust: without `config`, import and call what the run's own names, which runs code that the folder's author
            chose.

    Raises:
        ArgumentError: (a ValueError) if there is no such loader, or none at all.
        CheckpointError: if there are no weights, or they don't fit the model.
        EngineError: if neither `config` nor trust is given.
    """
    found, own = _find_weights(path_of(path), check_which(weights)), config is None
    if config is None:
        config = found.config("give your own config (--config FILE)", trust=trust)
    elif isinstance(seed := found.manifest.get("seed"), int):
        config = override(config, seed=seed)  # a split of the data may depend on it
    labels = [*config.eval_data]
    if not labels:
        raise ArgumentError("the config has no eval_data, so there is nothing to evaluate on")
    if data is not None and data not in labels:
        raise ArgumentError(f"the config has no evaluation loader {data!r}{did_you_mean(data, labels)}")
    with _importing_beside(found, trust=own):
        evaluator = make_evaluator(config, [data] if data is not None else labels, device)
    with evaluator:
        assert evaluator.state.model is not None
        prepare_to_load(evaluator.engine, found.tensors)
        found.load_into(evaluator.state.model)
        return Evaluated(evaluator.eval(), found.weights, found.step, found.epoch)


def _find_weights(path: Path, weights: str) -> Saved:
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
    return Saved(tensors, folder, manifest, name, at["batch"], at["epoch"])


def _find_in_run(path: Path, weights: str) -> Saved:
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
    clock = {}
    for unit in ("batch", "epoch"):
        if not re.fullmatch(r"[0-9]{1,18}", text := about.get(unit, "")):
            raise CheckpointError(f"{str(file)!r} does not say its {unit}: {readable(repr(text), 80)}")
        clock[unit] = int(text)
    tensors: dict[str, Any] = {**load(file)}
    if "extra_state" in about:
        tensors = {**_in_checkpoint(path, clock), **tensors}
    manifest = read_json(path / MANIFEST, raises=CheckpointError)
    if not isinstance(manifest, dict):
        raise CheckpointError(f"{str(path / MANIFEST)!r} is not a run's manifest: {manifest!r:.80}")
    used = about["algorithm"] if averaged else "trained"
    return Saved(tensors, path, manifest, used, clock["batch"], clock["epoch"])


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


def _algorithm_of(entry: Mapping[str, Any], saved: Saved, config: Config | None) -> Any:
    """Return an algorithm with the arguments that the run's had.

    It is an installed one, and nothing else is imported; with a config it may be one of the user's own.
    """
    name, place, folder = readable(entry["registered"]), entry["place"], str(saved.folder)
    registry, shipped = _check_installed(entry), entry.get("distribution")
    if shipped is None or entry["omitted"]:
        if config is None:
            lost = readable(", ".join(map(str, entry["omitted"])))
            why = (
                "is not an installed algorithm"
                if shipped is None
                else f"has a value of {lost} that a manifest can't hold"
            )
            raise CheckpointError(
                f"{name}, which changed the model of the run in {folder!r}, {why}: load it with trust=True and without "
                "a model, if that run has a config"
            )
        if not 0 <= place < len(config.algorithms):
            raise CheckpointError(f"the manifest in {folder!r} has no algorithm {place}")
        return build_plugin("algorithms", config.algorithms[place], config.place("algorithms", place))
    if (actual := registry.find("algorithms", entry["registered"]).distribution) != shipped:
        raise CheckpointError(f"{name!r:.80} is of {actual}, and the manifest says {shipped!r:.80}")
    loaded: Any = registry.load("algorithms", entry["registered"])
    if "surgery" not in loaded.metadata.tags:
        raise CheckpointError(f"the manifest in {folder!r} calls {name!r:.80} surgery")
    try:
        return loaded(**entry["settings"])
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{name} can't be made as in the saved run: {error}") from error


def _check_installed(entry: Mapping[str, Any]) -> Registry:
    """Raise unless the distribution of an algorithm is installed; warn if it is another version."""
    registry, shipped, version = Registry.scan(), entry.get("distribution"), entry.get("version")
    if shipped is None:
        return registry
    name, said = readable(entry["registered"]), readable(f"{shipped} {version}")
    if (now := registry.version_of(str(shipped))) == "?":
        raise PluginError(f"{name} of {said} changed the model, and it is not installed: install it to load the model")
    if now != version:
        warn(f"{name} of {said} changed the model; {now} is installed and may change it otherwise", CheckpointWarning)
    return registry


@contextmanager
def _importing_beside(saved: Saved, *, trust: bool) -> Iterator[None]:
    """Let what is trusted be imported from where the command would, but never from the run's folder itself."""
    places = [place for place in saved.import_from() if place not in sys.path] if trust else []
    sys.path.extend(places)
    try:
        yield
    except ConfigError as error:
        if not trust or not isinstance(error.__context__, ModuleNotFoundError):
            raise
        sought = readable(", ".join(saved.import_from()) or "no other folder, since the run names none")
        raise ConfigError(f"{error}; looked for where Python looks, and in {sought}") from None
    finally:
        for place in places:
            with suppress(ValueError):  # what was imported may have changed the path
                sys.path.remove(place)
