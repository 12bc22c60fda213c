"""Make what a config describes: everything is imported first, and the seed is set before model and data are made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..callback import Callback, saver_folders
from ..callbacks.checkpoint_saver import CheckpointSaver
from ..callbacks.time_limit import TimeLimit
from ..checkpoint import RUN_CHECKPOINTS
from ..config import (
    Config,
    Place,
    bind,
    build,
    build_algorithms,
    build_batches,
    build_listeners,
    build_passes,
    check_plugins,
    find_plugin,
    find_target,
    import_plugin,
    make_factory,
)
from ..errors import ArgumentError, ArgumentTypeError, UnwritableError, did_you_mean
from ..logger import Logger
from ..objective import Objective
from ..parallel import KINDS, join, spread_of
from ..randomness import check_seed, seed_generators
from ..ranks import Ranks
from ..state import State
from ..trainer import Trainer, by_name


def make_trainer(
    config: Config,
    loggers: Iterable[Any] = (),
    callbacks: Iterable[Any] = (),
    profile: Mapping[str, Any] | None = None,
    folder: Path | None = None,
    *,
    progress_bar: bool | None = None,
) -> Trainer:
    """Return the Trainer that `config` describes; the seed is set before model and data are made.

    Args:
        loggers, callbacks: more of them, besides the config's.
        profile: arguments of the callback that is registered as `profiler`; None: the run has none.
        folder: the run's folder, where checkpoints go; without one only a config's own saver saves.
        progress_bar: False: none; True: where the config leaves it open, one that is not for terminals alone.

    Raises:
        ConfigError: (a ValueError) with file, line, key and remedy for what can't be made.
    """
    if profile is not None:
        find_plugin("callbacks", "profiler", Place())
    parts = make_parts(config)
    own = parts["callbacks"]
    savers = [] if folder is None else savers_of(config, folder, own)
    profilers = [] if profile is None else [("profiler", profile)]
    parts["callbacks"] = [*own, *savers, *callbacks, *profilers]  # first what takes the folder
    parts["loggers"] = [*loggers, *parts["loggers"]]
    if progress_bar is False or (progress_bar and parts["progress_bar"] == "auto"):
        parts["progress_bar"] = progress_bar
    return assemble(config, parts, folder)


def join_ranks(config: Config) -> Ranks:
    """Return the processes of the run, before anything of it is imported.

    Raises:
        ConfigError: (a ValueError) if a plugin is not there, or the config does not say how long to train.
    """
    check_plugins(config)
    if config.trainer.max_duration is None:
        raise config.place("trainer").error("max_duration is missing: say how long to train, as in '10ep'")
    return join(spread_of(_parallel_of(config)), config.trainer.device)


def make_parts(config: Config) -> dict[str, Any]:
    """Return the Trainer's arguments that `config` describes; the seed is set before model and data are made.

    Raises:
        ConfigError: (a ValueError) with file, line, key and remedy for what can't be made.
    """
    _import_all(config)
    optimizers = _optimizers_of(config)
    _check_results(config)
    parallel = _parallel_of(config)
    ranks = join(spread_of(parallel), config.trainer.device)  # before a split of the data is drawn
    seed = ranks.first(check_seed(config.trainer.seed))
    seed_generators(seed)
    parts = _make_evaluated(config, config.eval_data)
    return {
        **config.trainer.model_dump(),
        "parallel": parallel,
        "seed": seed,
        **parts,
        "callbacks": build_listeners(config, "callbacks", ranks.rank),
        "optimizers": optimizers,
        "schedulers": [(make_factory(*each, "steps"), each[0].interval) for each in config.entries("schedulers")],
        "loggers": build_listeners(config, "loggers", ranks.rank),
    }


def _optimizers_of(config: Config) -> Any:
    """Import what makes the optimizers, and return a callable that does."""
    given, place = config.optimizer, config.place("optimizer")
    if not given.by_name:
        return make_factory(given, place)
    place = place.at("by_name")
    try:
        return by_name({key: make_factory(target, place.at(key)) for key, target in given.by_name.items()})
    except ArgumentError as error:
        raise place.error(str(error)) from error


def make_evaluator(config: Config, labels: Iterable[str], device: str | None = None) -> Trainer:
    """Return a Trainer that evaluates on the config's loaders with these labels, and neither trains nor logs.

    Raises:
        ConfigError: (a ValueError) with file, line, key and remedy for what can't be made.
    """
    check_plugins(config)
    settings = config.trainer
    seed_generators(check_seed(settings.seed))
    parts = {
        **_make_evaluated(config, labels),
        "train_dataloader": None,
        "precision": settings.precision,
        "device": settings.device if device is None else device,
        "seed": settings.seed,
        "progress_bar": False,
        "parallel": None,
    }
    return assemble(config, parts, None)


def _make_evaluated(config: Config, labels: Iterable[str]) -> dict[str, Any]:
    """Return the Trainer's arguments that an evaluation needs too; the draws of the training data come before its."""
    model, data = build(config.model, config.place("model")), build(config.data, config.place("data"))
    algorithms = build_algorithms(config)
    parts = {
        "model": model,
        "train_dataloader": data,
        "algorithms": algorithms,
        "batches": build_batches(config),
        "eval_dataloader": {name: build(config.eval_data[name], config.place("eval_data", name)) for name in labels},
        "metrics": {str(place.keys[-1]): build(target, place) for target, place in config.entries("metrics")},
        "algorithm_passes": build_passes(config, algorithms),
    }
    loss = None if config.loss is None else bind(config.loss, config.place("loss"))
    return {**parts, "objective" if isinstance(loss, Objective) else "loss_fn": loss}


def _parallel_of(config: Config) -> Any:
    """Return what `Trainer(parallel=...)` gets."""
    given = config.trainer.parallel
    if given is None or isinstance(given, str):
        return given
    return KINDS[given.name](**given.model_dump(exclude_unset=True, exclude={"name"}))


def assemble(config: Config, parts: dict[str, Any], folder: Path | None) -> Trainer:
    """Return the Trainer with these arguments, whose state knows config and folder.

    Raises:
        ConfigError: (a ValueError) with the file, for arguments that can't work together.
    """
    parts = {**parts, "callbacks": [_FromConfig(config, folder), *parts.get("callbacks", ())]}
    try:
        return Trainer(**parts)
    except UnwritableError:
        raise
    except (ArgumentError, ArgumentTypeError) as error:
        raise config.place().error(str(error)) from error


class _FromConfig(Callback):
    """Tells the run what it was made from, before it is compared with the saved one.

    It also says which results are better lower, before a stopper or a saver asks and a saved best is loaded.
    """

    def __init__(self, config: Config, folder: Path | None) -> None:
        self._config, self._folder = config, folder

    def init(self, state: State, logger: Logger) -> None:
        """Let the run know its config, its folder and where to import from."""
        config = self._config
        state.config, state.folder = config.model_dump(exclude_unset=True), self._folder
        if file := config.place().source.file:
            state.import_from = [*dict.fromkeys(map(str, (Path(file).resolve().parent, Path.cwd())))]
        if config.results.model_fields_set:
            state.results.set_directions(**config.results.model_dump())


def _import_all(config: Config) -> None:
    """Import everything that is named, so that import errors come first and nothing is made before seeding."""
    for listed in config.entries("algorithms"):
        import_plugin("algorithms", *listed)
    for section in ("model", "data", "loss"):
        if (target := getattr(config, section)) is not None:
            find_target(target.target, config.place(section))
    for target, place in config.entries("eval_data", "metrics"):
        find_target(target.target, place)


def savers_of(config: Config, folder: Path, callbacks: Iterable[Any]) -> list[CheckpointSaver]:
    """Return the saver of the run's folder, unless the config has a saver of its own and says nothing else.

    Raises:
        ConfigError: (a ValueError) if nothing is saved and a time limit is to pause the run.
    """
    callbacks, settings = list(callbacks), config.checkpoints
    if saver_folders(callbacks) and "checkpoints" not in config.model_fields_set:
        return []
    if settings.every is not None:
        best = None if settings.keep_best is None else 1
        saves = folder / RUN_CHECKPOINTS
        return [CheckpointSaver(saves, settings.every, settings.keep_last, best, settings.keep_best)]
    if not saver_folders(callbacks) and any(isinstance(c, TimeLimit) and c.then == "pause" for c in callbacks):
        raise config.place("checkpoints").error(
            "no checkpoints are saved, so the time limit can't pause the run: save some, or end it with then='stop'"
        )
    return []


def _check_results(config: Config) -> None:
    """Refuse a name that no evaluation result can have, and a result with two directions."""
    given = config.results.model_dump().items()
    named: list[tuple[str, list[Any]]]
    named = [(name, ["results", way, index]) for way, names in given for index, name in enumerate(names)]
    if (best := config.checkpoints.keep_best) is not None:
        named.append((best.removeprefix("min:").removeprefix("max:"), ["checkpoints", "keep_best"]))
    labels, metrics = [*config.eval_data], ["loss", *config.metrics]
    for name, keys in named:
        label, _, rest = name.partition("/")
        if (rest if label in labels else name).partition("/")[0] not in metrics:
            near = did_you_mean(name, [f"{label}/{metric}" for label in labels for metric in metrics])
            raise config.place(*keys).error(f"no evaluation has a result {name!r}{near}")
        if name in config.results.higher and name in config.results.lower:
            raise config.place(*keys).error(f"{name!r} is both under lower and under higher: give it once")
