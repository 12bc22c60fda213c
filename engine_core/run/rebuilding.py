"""The model of a saved run, made again: what made it, then the algorithms that changed its architecture."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..checkpoint import RUN_CHECKPOINTS
from ..config import Config, ConfigError, build, build_plugin, check_config
from ..engine import Engine
from ..errors import ArgumentTypeError, CheckpointError, CheckpointWarning, EngineError, PluginError
from ..event import Event
from ..logger import Logger
from ..manifest import NAME as MANIFEST
from ..messages import readable, warn
from ..randomness import preserve_generators
from ..registry import Registry
from ..state import State


class Source(NamedTuple):
    """A run's manifest, or a checkpoint's, with the folder that it is in; nothing that it says is trusted."""

    folder: Path
    manifest: Mapping[str, Any]

    def config(self, remedy: str) -> Config:
        """Return the config that the run was made from.

        Raises:
            EngineError: if a program made the run's Trainer; the message ends with the remedy.
        """
        values = self.manifest.get("config")
        if not isinstance(values, dict):
            raise EngineError(f"the run in {str(self.folder)!r} was not made from a config: {remedy}")
        return check_config(values, str(self.folder / MANIFEST))

    def surgery(self) -> list[dict[str, Any]]:
        """Return the entries of the algorithms that changed the model, in the order in which they did."""
        if "surgery" not in self.manifest:
            raise CheckpointError(
                f"the manifest in {str(self.folder)!r} does not say what changed the model, as those of older versions "
                "of engine-core: make the model, and give it the weights with Trainer(load_weights_only=True)"
            )
        entries = self.manifest["surgery"]
        if not isinstance(entries, list) or not all(map(_is_entry, entries)):
            raise CheckpointError(f"the manifest in {str(self.folder)!r} has {entries!r:.80} for surgery")
        return entries

    def import_from(self) -> list[str]:
        """Return the folders that the run imported from, without those in the run's folder itself."""
        folders = self.manifest.get("import_from")
        whole = self.folder.resolve()
        if whole.parent.name == RUN_CHECKPOINTS and (whole.parent.parent / MANIFEST).is_file():
            whole = whole.parent.parent
        given = [Path(folder) for folder in folders if isinstance(folder, str)] if isinstance(folders, list) else []
        return [str(f) for f in given if f.is_absolute() and not f.resolve().is_relative_to(whole)]


def _is_entry(entry: Any) -> bool:
    match entry:
        case {"registered": str(), "place": int(), "settings": dict(), "omitted": list()}:
            return True
    return False


def remake_model(
    source: Source, model: torch.nn.Module | Callable[[], torch.nn.Module] | None, *, trust: bool
) -> torch.nn.Module:
    """Return the run's model on the CPU with its architecture at the end of training; its weights are any.

    Args:
        model: a module with the architecture that the run began with, or what makes one; None: the config's.
        trust: may what the config names be imported and called?

    Raises:
        EngineError: if there is neither a model nor trust.
        PluginError: if an algorithm that changed the model is not installed.
    """
    with preserve_generators(torch.device("cpu")), importing_beside(source, trust=trust and model is None):
        if model is None:
            made = _of_config(source, trust=trust)
            entries = [_build(source, entry) for entry in source.surgery()]
        else:
            made = model() if callable(model) and not isinstance(model, torch.nn.Module) else model
            if not isinstance(made, torch.nn.Module):
                raise ArgumentTypeError(f"model has to be a module, or what makes one, not {model!r:.80}")
            entries = [_install(source, entry) for entry in source.surgery()]
        made.to("cpu")
        for algorithm in entries:
            state = State(model=made, algorithms=[algorithm], seed=0)
            with Engine(state, Logger()) as engine:
                engine.run_event(Event.INIT)
            assert state.model is not None
            made = state.model
    return made


def _of_config(source: Source, *, trust: bool) -> torch.nn.Module:
    config = source.config("give the model, as in load_model(path, model=Net())")
    if not trust:
        raise EngineError(
            f"to make the model, {config.model.target!r:.200} would be imported and called, because the manifest in "
            f"{str(source.folder)!r} says so: give the model, as in load_model(path, model=Net()), or, if you trust "
            "whoever wrote that folder, trust=True"
        )
    made = build(config.model, config.place("model"))
    if not isinstance(made, torch.nn.Module):
        raise ArgumentTypeError(f"{config.model.target} made a {type(made).__name__}, which is not a module")
    return made


def _build(source: Source, entry: Mapping[str, Any]) -> Any:
    """Return an algorithm as the config gives it, which may be one of the user's own."""
    config, place = source.config(""), entry["place"]
    if not 0 <= place < len(config.algorithms):
        raise CheckpointError(f"the manifest in {str(source.folder)!r} has no algorithm {place}")
    registry, given = _check_installed(entry), config.algorithms[place]
    if given.name is not None:  # a PluginError if it is disabled, as without a config
        registry.find("algorithms", given.name)
    return build_plugin("algorithms", given, config.place("algorithms", place))


def _install(source: Source, entry: Mapping[str, Any]) -> Any:
    """Return an installed algorithm with the arguments that the run's had; nothing else is imported."""
    if entry.get("distribution") is None:
        raise EngineError(
            f"{readable(entry['registered'])}, which is not an installed algorithm, changed the model of the run in "
            f"{str(source.folder)!r}: load it with trust=True and without a model, if that run has a config"
        )
    if entry["omitted"]:
        names = readable(", ".join(map(str, entry["omitted"])))
        raise CheckpointError(
            f"{readable(entry['registered'])} changed the model with a value of {names} that a manifest can't hold: "
            "load it with trust=True and without a model, if the run has a config"
        )
    registry, shipped = _check_installed(entry), entry["distribution"]
    if (actual := registry.find("algorithms", entry["registered"]).distribution) != shipped:
        raise CheckpointError(f"{entry['registered']!r:.80} is of {actual}, and the manifest says {shipped!r:.80}")
    loaded: Any = registry.load("algorithms", entry["registered"])
    if "surgery" not in loaded.metadata.tags:
        raise CheckpointError(f"the manifest in {str(source.folder)!r} calls {entry['registered']!r:.80} surgery")
    try:
        return loaded(**entry["settings"])
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{entry['registered']} can't be made as in the saved run: {error}") from error


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
def importing_beside(source: Source, *, trust: bool) -> Iterator[None]:
    """Let what is trusted be imported from where the command would, but never from the run's folder itself."""
    places = [place for place in source.import_from() if place not in sys.path] if trust else []
    sys.path.extend(places)
    try:
        yield
    except ConfigError as error:
        if not trust or not isinstance(error.__context__, ModuleNotFoundError):
            raise
        sought = readable(", ".join(source.import_from()) or "no other folder, since the run names none")
        raise ConfigError(f"{error}; looked for where Python looks, and in {sought}") from None
    finally:
        for place in places:
            with suppress(ValueError):  # what was imported may have changed the path
                sys.path.remove(place)
