"""Train what a config describes, and write the results to the run's folder."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..callback import saver_folders
from ..callbacks.checkpoint_saver import CheckpointSaver
from ..checkpoint import RUN_CHECKPOINTS, has_checkpoint
from ..config import Config, check_plugins
from ..errors import CheckpointError, OrderError, add_note
from ..explain import explain_engine
from ..loggers.run_files import RunFiles, finite
from ..manifest import SCHEMA
from ..trainer import Trainer, clock_in, versions_of
from .folder import choose_folder, claimed, settle
from .making import make_trainer


@dataclass(frozen=True)
class RunResults:
    """The results of a run.

    Args:
        folder: where `manifest.json`, `metrics.jsonl`, `metrics.csv` and `results.json` are.
        metrics: the last value of everything that was logged, by name.
        best: of each evaluation result, `{"value", "step", "epoch"}`, or None if it was never finite.
        seconds: wall-clock time in `fit`, evaluation included, of all attempts of a resumed run.
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
    best: Mapping[str, Any] = field(default_factory=dict)
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
    config = settle(config, folder)
    files = RunFiles(folder)
    savers = [] if checkpoint_every is None else [CheckpointSaver(folder / RUN_CHECKPOINTS, checkpoint_every)]
    trainer = make_trainer(config, loggers=[files], callbacks=savers, profile=profile)
    trainer.state.folder = folder
    try:
        with trainer:
            described = _as_json(_manifest(config, trainer))  # an impossible order is found before a folder is made
            with claimed(folder, again=config.trainer.autoresume) as manifest:
                if not manifest.stat().st_size:
                    manifest.write_text(described, encoding="utf-8")
                trainer.fit()
    except (KeyboardInterrupt, SystemExit) as interruption:
        add_note(interruption, f"what was logged until then is in {folder}")
        raise
    results = _results(trainer, files)
    if results.is_paused:
        _check_saved(trainer)
        return results
    written = _as_json({**finite(results.metrics), **_flat(results)})
    (folder / "results.json").write_text(written, encoding="utf-8")
    return results


def _check_saved(trainer: Trainer) -> None:
    """Raise a CheckpointError if a paused run was not saved: started again, it would repeat its work."""
    now, folders = trainer.state.timestamp, saver_folders(trainer.state.callbacks)
    if not any(clock_in(folder) == (now.batch, now.epoch) for folder in folders if has_checkpoint(folder)):
        where = " or ".join(repr(str(folder)) for folder in folders)
        raise CheckpointError(f"the run paused at batch {now.batch}, and was not saved in {where}: see above")


def _results(trainer: Trainer, files: RunFiles) -> RunResults:
    now, members = trainer.state.timestamp, trainer.engine.lineup[0]
    never = {m.name: 0 for m in members if not any(key.startswith(f"{m.name}/") for key in files.runs)}
    return RunResults(
        folder=files.folder,
        metrics={**files.latest, **trainer.state.results.last},
        best={name: told["best"] for name, told in trainer.results.items()},
        seconds=round(files.fit_s, 3),
        epochs=now.epoch,
        batches=now.batch,
        samples=now.sample,
        samples_per_second=round(now.sample / now.elapsed_s, 1) if now.elapsed_s else 0.0,
        algorithms={**files.runs, **never},
        is_paused=trainer.state.pause_requested,
    )


def _flat(results: RunResults) -> dict[str, Any]:
    return {name: value for name, value in asdict(results).items() if name not in ("folder", "metrics", "is_paused")}


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
