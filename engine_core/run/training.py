"""Train what a config describes, and keep in the run's folder what comes out of it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..callback import saver_folders
from ..checkpoint import has_checkpoint
from ..config import Config
from ..errors import CheckpointError, CheckpointWarning, OrderError
from ..explain import explain_engine
from ..files import write_whole
from ..loggers.run_files import RunFiles
from ..manifest import NAME as MANIFEST
from ..manifest import SCHEMA
from ..messages import join_words, warn
from ..ranks import Ranks
from ..signals import SignalGuard
from ..trainer import Trainer, clock_in, describe, ending_together, is_between_batches, versions_of
from .build import join_ranks, make_trainer
from .folder import FolderReporter, choose_folder, settle
from .result import Ending, RunResults, as_json, latest_of, results_of, timing_of, write_model


class Run:
    """One attempt to train what a config describes.

    Nothing is written until the config is valid and everything that it names is made.

    Args:
        folder: the run's folder; default: a new one below `runs`.
        profile: write a Chrome trace of the run to this file, with the callback `profiler`, and what `timing` does.
        timing: add to `results.json` how long each part of the run took in sum.
        progress_bar: False: none; True: where the config leaves it open, one that is not for terminals alone.
        hand_on: receives each line that `train --json` prints.

    Raises:
        ConfigError: (a ValueError) with file, line, key and remedy for what can't be made.
        EngineError: for what the engine refuses. Exceptions of the run's own code pass through.
    """

    @ending_together
    def __init__(
        self,
        config: Config,
        folder: Path | str | None = None,
        *,
        profile: Path | str | None = None,
        timing: bool = False,
        progress_bar: bool | None = None,
        hand_on: Callable[[str], object] = lambda _: None,
    ) -> None:
        self.ranks = join_ranks(config)
        self.folder, self.config = _settled(config, folder, self.ranks)
        self._files = RunFiles(self.folder)
        self.reporter = FolderReporter(self._files, hand_on)
        self.trainer = make_trainer(
            self.config,
            loggers=[self._files],
            callbacks=[self.reporter],
            profile={"path": profile} if timing or profile is not None else None,
            folder=self.folder,
            progress_bar=progress_bar,
        )
        self._lost: list[str] = []
        self._written: tuple[Path | None, Path | None] = (None, None)
        self._results: RunResults | None = None

    @ending_together
    def train(self) -> Ending:
        """Train to the end, write what the run leaves, and say what that is.

        After an exception, which passes, `end` says it.
        """
        trainer = self.trainer
        with trainer:
            # First: an impossible order is found before there is a folder.
            described = as_json(_manifest(self.config, trainer))
            with self.reporter.claiming(self.ranks, described, again=self.config.trainer.autoresume):
                trainer.fit()
            # A first signal waits until what a complete fit leaves is written; then there is nothing to end.
            with SignalGuard(lambda _: None):
                had_finished = self.ranks.decide(self._had_finished)
                trainer.close()
                self._results = results_of(trainer, self._files)
                if not had_finished:
                    self._write_rest(self._results)
        return self.end()

    def end(self, error: BaseException | None = None) -> Ending:
        """Return how the run ended, by itself or with an exception that `train` raised."""
        status = "finished"
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            status = "interrupted"
            if is_between_batches(error):  # else half a step may be in the model
                self._results = results_of(self.trainer, self._files)
                self._write_model()
                self.ranks.any(False)  # as below
        elif error is not None:
            status = "failed"
        elif self._results is not None and self._results.is_paused:
            status = "paused"
        model, average = self._written
        state, latest, own = self.trainer.state, latest_of(self.trainer), self.folder.absolute()
        if latest is not None and latest.is_relative_to(own):
            latest = self.folder / latest.relative_to(own)
        if status != "finished" and (timing := timing_of(self.trainer)) is not None:
            self.reporter.emit({**self.reporter.event("timing", state), **timing})
        return Ending(
            status=status,
            folder=self.folder if (self.folder / MANIFEST).exists() else None,
            batch=state.timestamp.batch,
            model=model,
            average=average,
            checkpoint=latest,
            lost=tuple(self._lost),
            results=self._results,
            why=state.loop.stop_reason,
        )

    def _had_finished(self) -> bool:
        """Did an earlier attempt end and leave all of it, so that there was nothing to do?

        One that was cut off after its last checkpoint leaves the rest now.
        """
        if not self.reporter.has_begun:
            if (self.folder / "results.json").exists():
                return True
            self.reporter.begin()
            self._files.fit_start(self.trainer.state, self.trainer.logger)
        return False

    def _write_rest(self, results: RunResults) -> None:
        """Write what a run leaves at its end, beside what was logged."""
        self._write_model()
        self._check_saved("the run paused" if results.is_paused else "the run ended")
        if not self.ranks.rank:
            self._write_results(results)
        self.ranks.any(False)  # wait for rank 0: torchrun ends it once a process has ended with another code than 0

    def _write_model(self) -> None:
        try:
            self._written = write_model(self.trainer, self.folder)
        except CheckpointError as error:
            self._lost.append(f"no model was written: {error}")

    def _write_results(self, results: RunResults) -> None:
        """Write the results of a run that did not pause; note which files are not whole, or were taken away."""
        if gone := [name for name in (MANIFEST, "metrics.jsonl") if not (self.folder / name).exists()]:
            self._lost.append(f"something took {join_words(gone)} out of {str(self.folder)!r} while the run trained")
        if results.is_paused:
            return
        try:
            write_whole(self.folder / "results.json", as_json(results.to_json()))
        except OSError as error:
            self._lost.append(f"results.json could not be written: {error}")
        if self._files.lost:
            self._lost.append(f"metrics.jsonl or metrics.csv is not whole: {self._files.lost}")

    def _check_saved(self, what: str) -> None:
        """Note that the last position is in none of the folders: started again, the run would repeat its work."""
        now, folders = self.trainer.state.timestamp, saver_folders(self.trainer.state.callbacks)
        for folder in folders:
            with suppress(CheckpointError):
                if has_checkpoint(folder) and clock_in(folder) == (now.batch, now.epoch):
                    return
        if folders:
            where = " or ".join(repr(str(folder)) for folder in folders)
            self._lost.append(f"{what} at batch {now.batch} and was not saved in {where}")


def train(
    config: Config, folder: Path | str | None = None, profile: Path | str | None = None, *, timing: bool = False
) -> RunResults:
    """Train what `config` describes, write the run's files, and return the results; see `Run`.

    Raises:
        CheckpointError: if the run paused and was not saved.
    """
    run = Run(config, folder, profile=profile, timing=timing)
    try:
        ending = run.train()
    except BaseException as error:
        run.reporter.end_with(run.end(error))
        raise
    run.reporter.end_with(ending)
    assert ending.results is not None
    if ending.results.is_paused and ending.lost:
        raise CheckpointError("; ".join(ending.lost))
    for message in ending.lost:
        warn(message, CheckpointWarning)
    return ending.results


def _settled(config: Config, folder: Path | str | None, ranks: Ranks) -> tuple[Path, Config]:
    """Return the run's folder and its config with a name and a seed, as rank 0 chooses them."""

    def choose() -> tuple[str, dict[str, Any]]:
        chosen = choose_folder(config, folder)
        return str(chosen), settle(config, chosen)

    chosen, settled = ranks.decide(choose)
    return Path(chosen), config.model_copy(update={"trainer": config.trainer.model_copy(update=settled)})


def _manifest(config: Config, trainer: Trainer) -> dict[str, Any]:
    """Return what is needed to understand and repeat the run; see `engine_core.manifest.Manifest`."""
    state, explanation = trainer.state, explain_engine(trainer.engine)
    passes = trainer.engine.passes
    if explanation.problems:
        raise OrderError("\n".join(explanation.problems))
    return {
        "schema": SCHEMA,
        **describe(trainer),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": sys.argv,
        "device": str(state.device),
        "precision": state.precision,
        "versions": versions_of([*state.algorithms, *state.callbacks, *trainer.logger.destinations], passes.registry),
        "overrides": list(config.place().source.overrides),
        "config_file": config.place().source.file,
        "config": config.model_dump(exclude_unset=True),
        "higher_is_better": state.results.higher_is_better,
        **explanation.to_json(),
    }
