"""What came out of a run: its results and how it ended, as data; and the files of its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ..callback import saver_folders
from ..checkpoint import BEST, MODEL, has_checkpoint, resolve, with_average, write_weights
from ..errors import CheckpointError
from ..files import finite
from ..loggers.run_files import RunFiles
from ..messages import table_in_html
from ..parallel import write_gathered
from ..time import as_number
from ..trainer import Trainer, at_evaluation, copy_weights, find_average

AVERAGE = "model-average.safetensors"


@dataclass(frozen=True)
class RunResults:
    """The results of a run.

    Args:
        folder: where `manifest.json`, `metrics.jsonl`, `metrics.csv` and `results.json` are.
        metrics: the last value of everything that was logged, by name.
        best: of each evaluation result, `{"value", "step", "epoch"}`, or None if it was never finite.
        weights: those that the last evaluation used: `trained`, or the registered name of what averaged them.
        checkpoints: `latest` and `best`, relative to the folder; None where there is none in it.
        seconds: wall-clock time in `fit`, evaluation included, of all attempts of a resumed run.
        samples_per_second: without evaluation; counted as loaded, before an algorithm prunes a batch.
        algorithms: how often each algorithm ran, as in `{"Noise/AFTER_DATALOADER": 40}`, or `{"Noise": 0}` if never.
        finished: those that had nothing left to do.
        approximate: the evaluation results that depend on the size of batches, see `Objective`.
        is_paused: did the run pause, as at a time limit, before its end? Then there is no `results.json`.
        timing: how long each part took in sum, by span; None if it was not measured.
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
    weights: str = "trained"
    checkpoints: Mapping[str, str | None] = field(default_factory=dict)
    approximate: Sequence[str] = ()
    finished: Sequence[str] = ()
    is_paused: bool = False
    timing: Mapping[str, Any] | None = None

    def _repr_html_(self) -> str:
        """Return tables of results, algorithms and time, for a notebook."""
        results = []
        for name, value in sorted(self.metrics.items()):
            best = self.best.get(name) or {}
            results.append((name, _short(value), *(_short(best.get(key)) for key in ("value", "step", "epoch"))))
        ran = [(*key.partition("/")[::2], _short(times)) for key, times in self.algorithms.items()]
        told = [(name, _short(getattr(self, name))) for name in ("epochs", "batches", "samples", "weights", "folder")]
        told += [("seconds", f"{self.seconds:,.1f}"), ("samples per second", f"{self.samples_per_second:,.1f}")]
        tables = [
            table_in_html(("result", "last", "best", "step", "epoch"), results, "results"),
            table_in_html(("algorithm", "event", "times"), ran, "algorithms") if ran else "",
            table_in_html(("of the run", ""), told, "paused" if self.is_paused else ""),
        ]
        return "\n".join(filter(None, tables))

    def to_json(self) -> dict[str, Any]:
        """Return what `results.json` holds: the last values under their names, then the rest."""
        told = {name: value for name, value in asdict(self).items() if name not in ("folder", "metrics", "is_paused")}
        for name in ("approximate", "finished", "timing"):
            if not told[name]:
                del told[name]
        return {**finite(self.metrics), **told}


def _short(value: object) -> str:
    """Return a value as a table shows it."""
    if isinstance(value, float):
        return f"{value:.5g}"
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


@dataclass(frozen=True)
class Ending:
    """How a run ended, and what it left.

    Args:
        status: `finished`, `paused`, `interrupted` or `failed`.
        folder: None if the run was refused before anything was in it.
        batch: how many were complete.
        why: what asked the run to end before its `max_duration`, if it said so.
        model, average: the files of weights, None where there is none.
        checkpoint: the latest.
        lost: what could not be written, one message each; with any, a finished or paused run is not whole.
        results: None after an exception, but for an interruption that waited for the batch.
    """

    status: str
    folder: Path | None
    batch: int
    model: Path | None = None
    average: Path | None = None
    checkpoint: Path | None = None
    lost: tuple[str, ...] = ()
    results: RunResults | None = None
    why: str | None = None


def latest_of(trainer: Trainer) -> Path | None:
    """Return the latest checkpoint of the first folder that has one."""
    for folder in saver_folders(trainer.state.callbacks):
        with suppress(CheckpointError):
            if has_checkpoint(folder):
                return resolve(folder)
    return None


def results_of(trainer: Trainer, files: RunFiles) -> RunResults:
    """Return the results of a trainer's run, with what its files logged and counted."""
    now, members = trainer.state.timestamp, trainer.engine.members
    never = {m.name: 0 for m in members if not any(key.startswith(f"{m.name}/") for key in files.runs)}
    average = find_average(trainer.engine)
    return RunResults(
        folder=files.folder,
        metrics={**files.latest, **trainer.state.results.last},
        best={name: told["best"] for name, told in trainer.results.items()},
        weights="trained" if average is None else average.registered,
        checkpoints=_checkpoints(trainer, files.folder),
        seconds=round(files.fit_s, 3),
        epochs=now.epoch,
        batches=now.batch,
        samples=now.sample,
        samples_per_second=round(now.sample / now.elapsed_s, 1) if now.elapsed_s else 0.0,
        algorithms={**files.runs, **never},
        approximate=sorted(trainer.state.results.approximate),
        finished=[member.name for member in members if member.finished],
        is_paused=trainer.state.loop.pause_requested,
        timing=timing_of(trainer),
    )


def timing_of(trainer: Trainer) -> Mapping[str, Any] | None:
    """Return how long each part of a trainer's run took, if a callback measured it, which then has a `timing`."""
    return next((each.timing for each in trainer.state.callbacks if hasattr(each, "timing")), None)


def _checkpoints(trainer: Trainer, folder: Path) -> dict[str, str | None]:
    """Return the latest and the best checkpoint by their paths within the folder."""
    found, own = {"latest": latest_of(trainer), "best": None}, folder.absolute()
    for saver in saver_folders(trainer.state.callbacks):
        if (saver / BEST).is_file():
            with suppress(CheckpointError):
                found["best"] = resolve(saver / BEST)
    inside = {name: path for name, path in found.items() if path is not None and path.is_relative_to(own)}
    return {name: inside[name].relative_to(own).as_posix() if name in inside else None for name in found}


def as_json(content: Mapping[str, Any]) -> str:
    """Return a file's content."""
    return json.dumps(content, indent=2, default=_number_or_text) + "\n"


def _number_or_text(value: Any) -> Any:
    number = as_number(value)
    return number if isinstance(number, (int, float)) else str(value)


def write_model(trainer: Trainer, folder: Path) -> tuple[Path, Path | None]:
    """Write the weights to `model.safetensors`, and where an algorithm averages them, those beside it.

    Raises:
        CheckpointError: if they can't be written.
    """
    now, model = trainer.state.timestamp, trainer.state.model
    about = {"epoch": str(now.epoch), "batch": str(now.batch)}
    with at_evaluation(trainer.state.optimizers):
        weights = copy_weights(model)
        if model is not None and len(weights) < len(model.state_dict()):
            about["extra_state"] = "in the checkpoint"
        files = {MODEL: weights}
        if (average := find_average(trainer.engine)) is not None:
            about["algorithm"] = average.registered
            # The model last: with an average, neither is whole without the other.
            files = {AVERAGE: with_average(weights, average.weights), MODEL: weights}
        for name, values in files.items():
            write_gathered(trainer.state.ranks, values, partial(write_weights, folder / name, about=about))
    return folder / MODEL, None if average is None else folder / AVERAGE
