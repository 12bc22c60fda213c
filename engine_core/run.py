"""Train what a config describes, and write the results to the run's folder."""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .callback import saver_folders
from .callbacks.checkpoint_saver import CheckpointSaver
from .checkpoint import RUN_CHECKPOINTS, has_checkpoint, read_manifest, resolve
from .config import (
    Config,
    bind,
    build,
    build_algorithms,
    build_listeners,
    build_passes,
    check_plugins,
    find_target,
    import_plugin,
    make_factory,
)
from .errors import ArgumentError, ArgumentTypeError, CheckpointError, OrderError, add_note
from .explain import explain_engine
from .loggers.run_files import RunFiles, finite
from .manifest import SCHEMA
from .randomness import seed_generators
from .registry import Registry
from .trainer import Trainer, check_seed, clock_in, new_name, versions_of

__all__ = ["RunResults", "choose_folder", "make_trainer", "train"]


@dataclass(frozen=True)
class RunResults:
    """The results of a run.

    Args:
        folder: where `manifest.json`, `metrics.jsonl`, `metrics.csv` and `results.json` are.
        metrics: the last value of everything that was logged, by name.
        seconds: wall-clock time of training, evaluation included.
        samples_per_second: without evaluation; counted as loaded, before an algorithm prunes a batch.
        algorithms: how often each algorithm ran, as in `{"Noise/AFTER_DATALOADER": 40}`, or `{"Noise": 0}` if never.
        is_paused: did the run pause, as at a time limit, before its end? Then there is no `results.json`.
    """

    folder: Path
    metrics: Mapping[str, Any]
    seconds: float
    epochs: int
    batches: int
    samples: int
    samples_per_second: float
    algorithms: Mapping[str, int]
    is_paused: bool = False


def train(
    config: Config,
    folder: Path | str | None = None,
    profile: Path | str | None = None,
    checkpoint_every: str | None = None,
) -> RunResults:
    """Train what `config` describes, write the run's files, and return the results.

    Nothing is written until the config is valid and everything that it names is made.

    Args:
        folder: the run's folder; default: a new one below `runs`.
        profile: write a Chrome trace of the run to this file.
        checkpoint_every: save the run at this interval, in `checkpoints` in its folder.

    Raises:
        ConfigError: (a ValueError) with file, line, key and remedy for what can't be made.
        EngineError: for what the engine refuses. Exceptions of the run's own code pass through.
    """
    check_plugins(config)
    if config.trainer.max_duration is None:
        raise config.place("trainer").error("max_duration is missing: say how long to train, as in '10ep'")
    folder = choose_folder(config, folder)
    config = _settle(config, folder)
    files = RunFiles(folder)
    savers = [] if checkpoint_every is None else [CheckpointSaver(folder / RUN_CHECKPOINTS, checkpoint_every)]
    trainer = make_trainer(config, loggers=[files], callbacks=savers, profile=profile)
    try:
        with trainer:
            described = _as_json(_manifest(config, trainer))  # an impossible order is found before a folder is made
            with _claimed(folder, again=config.trainer.autoresume) as manifest:
                if not manifest.stat().st_size:
                    manifest.write_text(described, encoding="utf-8")
                started_s = time.perf_counter()
                trainer.fit()
                seconds = time.perf_counter() - started_s
    except (KeyboardInterrupt, SystemExit) as interruption:
        add_note(interruption, f"what was logged until then is in {folder}")
        raise
    results = _results(trainer, files, seconds)
    if results.is_paused:
        _check_saved(trainer)
        return results
    flat = {name: value for name, value in asdict(results).items() if name not in ("folder", "metrics", "is_paused")}
    (folder / "results.json").write_text(_as_json({**finite(results.metrics), **flat}), encoding="utf-8")
    return results


def make_trainer(
    config: Config,
    loggers: Iterable[Any] = (),
    callbacks: Iterable[Any] = (),
    profile: Path | str | None = None,
) -> Trainer:
    """Return the Trainer that `config` describes; the seed is set before model and data are made.

    Args:
        loggers, callbacks: more of them, besides the config's.

    Raises:
        ConfigError: (a ValueError) with file, line, key and remedy for what can't be made.
    """
    _import_all(config)
    settings = config.trainer.model_dump()
    settings["seed"] = check_seed(settings["seed"])
    seed_generators(settings["seed"])
    model = build(config.model, config.place("model"))
    data = build(config.data, config.place("data"))
    algorithms = build_algorithms(config)
    callbacks = [*build_listeners(config, "callbacks"), *callbacks]
    parts: dict[str, Any] = {
        "loss_fn": None if config.loss is None else bind(config.loss, config.place("loss")),
        "optimizers": make_factory(config.optimizer, config.place("optimizer")),
        "schedulers": [
            (make_factory(entry, config.place("schedulers", index)), entry.interval)
            for index, entry in enumerate(config.schedulers)
        ],
        "eval_dataloader": {name: build(t, config.place("eval_data", name)) for name, t in config.eval_data.items()},
        "metrics": {name: build(t, config.place("metrics", name)) for name, t in config.metrics.items()},
        "algorithms": algorithms,
        "callbacks": callbacks if profile is None else [*callbacks, ("profiler", {"path": str(profile)})],
        "loggers": [*loggers, *build_listeners(config, "loggers")],
        "algorithm_passes": build_passes(config, algorithms),
    }
    try:
        trainer = Trainer(model, data, **parts, **settings)
    except (ArgumentError, ArgumentTypeError) as error:
        raise config.place().error(str(error)) from error
    trainer.state.config = config.model_dump(exclude_unset=True)
    return trainer


def choose_folder(config: Config, folder: Path | str | None = None) -> Path:
    """Return where a run's files go: `folder`, or else an unused name below `runs`.

    The name is the config's `run_name`, or else its file's with date and time.

    Raises:
        ArgumentError: (a ValueError) if `folder` holds another run, or is a file.
    """
    if folder is not None:
        if not config.trainer.autoresume and any(
            os.path.lexists(Path(folder) / name) for name in ("manifest.json", "metrics.jsonl", "results.json")
        ):
            raise ArgumentError(
                f"{str(folder)!r} holds another run; choose another folder, remove that one, or resume it (autoresume)"
            )
        return Path(folder)
    file = Path(config.place().source.file).stem or "run"
    name = config.trainer.run_name or f"{file}-{new_name()}"
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(path for path in (Path("runs") / name for name in names) if not os.path.lexists(path))


def _settle(config: Config, folder: Path) -> Config:
    """Return the config with a name and a seed, so that the manifest's config repeats this run.

    A resumed run makes model and data with the saved run's seed.
    """
    settings, own = config.trainer, folder / RUN_CHECKPOINTS
    path = own if settings.autoresume and has_checkpoint(own) else settings.load_path
    seed = settings.seed
    if seed is None and path is not None and not settings.load_weights_only:
        saved = read_manifest(resolve(Path(path))).get("seed")
        seed = saved if isinstance(saved, int) else None
    settled = {"seed": check_seed(seed), "run_name": settings.run_name or folder.name}
    return config.model_copy(update={"trainer": settings.model_copy(update=settled)})


def _import_all(config: Config) -> None:
    """Import everything that is named, so that import errors come first and nothing is made before seeding."""
    registry = Registry.scan()
    for index, entry in enumerate(config.algorithms):
        import_plugin("algorithms", entry, config.place("algorithms", index), registry)
    for section in ("model", "data", "loss", "optimizer"):
        if (target := getattr(config, section)) is not None:
            find_target(target.target, config.place(section))
    for section in ("eval_data", "metrics"):
        for name, target in getattr(config, section).items():
            find_target(target.target, config.place(section, name))


def _check_saved(trainer: Trainer) -> None:
    """Raise a CheckpointError if a paused run was not saved: started again, it would repeat its work."""
    now, folders = trainer.state.timestamp, saver_folders(trainer.state.callbacks)
    if not any(clock_in(folder) == (now.batch, now.epoch) for folder in folders if has_checkpoint(folder)):
        where = " or ".join(repr(str(folder)) for folder in folders)
        raise CheckpointError(f"the run paused at batch {now.batch}, and was not saved in {where}: see above")


def _results(trainer: Trainer, files: RunFiles, seconds: float) -> RunResults:
    now, members = trainer.state.timestamp, trainer.engine.lineup[0]
    never = {m.name: 0 for m in members if not any(key.startswith(f"{m.name}/") for key in files.runs)}
    return RunResults(
        folder=files.folder,
        metrics={**files.latest, **trainer.state.metrics},
        seconds=round(seconds, 3),
        epochs=now.epoch,
        batches=now.batch,
        samples=now.sample,
        samples_per_second=round(now.sample / now.elapsed_s, 1) if now.elapsed_s else 0.0,
        algorithms={**files.runs, **never},
        is_paused=trainer.state.pause_requested,
    )


def _manifest(config: Config, trainer: Trainer) -> dict[str, Any]:
    """Return what is needed to understand and repeat the run; see `engine_core.manifest.Manifest`."""
    state, explanation = trainer.state, explain_engine(trainer.engine)
    _, passes = trainer.engine.lineup
    if explanation.problems:
        raise OrderError("\n".join(explanation.problems))
    return {
        "schema": SCHEMA,
        "run_name": state.run_name,
        "seed": state.seed,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": sys.argv,
        "device": str(state.device),
        "precision": state.precision,
        "versions": versions_of([*state.algorithms, *state.callbacks, *trainer.logger.destinations], passes.registry),
        "config_file": config.place().source.file,
        "config": config.model_dump(exclude_unset=True),
        **explanation.to_json(),
    }


def _as_json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2, default=str) + "\n"


@contextmanager
def _claimed(folder: Path, *, again: bool) -> Iterator[Path]:
    """Claim the folder for this run and yield the manifest's path; release it if the run fails before logging.

    With `again` it may already be this run's.
    """
    manifest = folder / "manifest.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        manifest.open("a" if again else "x").close()
    except FileExistsError as error:
        raise ArgumentError(f"{str(folder)!r} was taken by another run; choose another folder") from error
    except OSError as error:
        raise ArgumentError(f"can't write to {str(folder)!r}: {error.strerror}; choose another folder") from error
    try:
        yield manifest
    except BaseException:
        if not (folder / "metrics.jsonl").exists():
            manifest.unlink(missing_ok=True)
            with suppress(OSError):  # others have files in it
                folder.rmdir()
        raise
