"""One run of a study, trained by the core, and what it is measured by."""

from __future__ import annotations

import hashlib
import math
import os
import platform
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from engine_core import Batches, Callback, Logger, State, hookimpl
from engine_core.cli import import_beside
from engine_core.config import build, check_config
from engine_core.errors import ArgumentError, EngineError
from engine_core.messages import cause_of
from engine_core.results import Results
from engine_core.run import Run, try_config

from .design import Job
from .record import STOP, Record, write_record


class Measuring(Callback):
    """Counts what training costs, without evaluation: seconds, and the rows that go through the model.

    It takes fingerprints of what training begins with, too. A resumed run counts on.
    """

    def __init__(self) -> None:
        self.weights, self.data = "", []  # type: str, list[str]
        self.seconds, self.wall_s, self.unit = 0.0, 0.0, "CPU s"
        self.forward_rows: int | None = 0
        self.backward_rows = 0
        self.device = ""
        self._since_s: float | None = None
        self._wall_since_s = 0.0
        self._hook: Any = None
        self._rows = Batches().rows

    def init(self, state: State, logger: Logger) -> None:
        """Take the fingerprint of the weights, before an algorithm changes the model."""
        self.weights = digest(state.model.state_dict() if state.model is not None else {})

    def fit_start(self, state: State, logger: Logger) -> None:
        """Begin to count."""
        is_gpu = str(state.device).startswith("cuda")
        self.unit = "GPU s" if is_gpu else "CPU s"
        self.device = torch.cuda.get_device_name() if is_gpu else processor()
        assert state.model is not None
        self._hook = state.model.register_forward_pre_hook(self._count, with_kwargs=True)
        self._wall_since_s = time.perf_counter()
        self._since_s = self._clock_s()

    def eval_start(self, state: State, logger: Logger) -> None:
        """Stop the clock."""
        self._stop()

    def eval_end(self, state: State, logger: Logger) -> None:
        """Start the clock, if `fit` is running."""
        self._since_s = self._clock_s() if self._hook is not None else None

    def fit_end(self, state: State, logger: Logger) -> None:
        """Stop counting."""
        self._stop()
        self.wall_s += time.perf_counter() - self._wall_since_s
        self.close(state, logger)

    def close(self, state: State, logger: Logger) -> None:
        """Take the hook off the model."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def take(self, batch: Any) -> None:
        """Take the fingerprint of a batch."""
        self.data.append(digest(batch))

    def state_dict(self) -> dict[str, Any]:
        """Return what has been counted."""
        running_s = 0.0 if self._since_s is None else self._clock_s() - self._since_s
        wall_s = time.perf_counter() - self._wall_since_s if self._hook is not None else 0.0
        counted = {"forward_rows": self.forward_rows, "backward_rows": self.backward_rows, "data": [*self.data]}
        return {**counted, "seconds": self.seconds + running_s, "wall_s": self.wall_s + wall_s}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Count on from there."""
        vars(self).update({**state, "data": [*state["data"]]})

    def _clock_s(self) -> float:
        if self.unit == "CPU s":
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()

    def _stop(self) -> None:
        if self._since_s is not None:
            self.seconds += self._clock_s() - self._since_s
            self._since_s = None

    def _count(self, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._since_s is None or self.forward_rows is None:
            return
        try:
            rows = self._rows((args, kwargs) if kwargs else args)
        except ArgumentError:  # what the model gets does not tell how many rows it has
            self.forward_rows = None
            return
        self.forward_rows += rows
        self.backward_rows += rows * torch.is_grad_enabled()


def digest(value: Any) -> str:
    """Return a fingerprint of the tensors in a value, of their names and shapes; equal ones have the same.

    Example:
        >>> digest({"w": torch.zeros(2)}) == digest({"w": torch.zeros(2)}) != digest({"w": torch.ones(2)})
        True
    """
    made = hashlib.blake2b(digest_size=8)

    def take(part: Any) -> None:
        if isinstance(part, torch.Tensor):
            made.update(f"{part.dtype}{tuple(part.shape)}".encode())
            whole = part.detach().to_dense() if part.layout is not torch.strided else part.detach()
            made.update(whole.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(part, Mapping):
            for key, inner in part.items():
                made.update(str(key).encode())
                take(inner)
        elif isinstance(part, (list, tuple)):
            for inner in part:
                take(inner)
        else:
            made.update(repr(part).encode())

    take(value)
    return made.hexdigest()


def processor() -> str:
    """Return what the CPU calls itself."""
    with suppress(OSError), Path("/proc/cpuinfo").open(encoding="utf-8") as file:
        named = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "")
        if named:
            return named
    return platform.processor() or platform.machine()


def train_job(job: Job, folder: Path | str, threads: int | None = None) -> Record:
    """Train one run to its end, or resume it, and return its record; a failing run returns one too.

    Args:
        folder: of the study.
        threads: of torch; None: as they are.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    place, listeners = Path(folder, job.folder), list[Measuring]()
    record = replace(Record.of(job), began=time.time())
    try:
        values, lower, clock = _train(job, Path(folder), listeners)
    except KeyboardInterrupt:
        ended = replace(record, status="interrupted", error="interrupted")
    except (Exception, SystemExit) as error:  # noqa: BLE001  a row of the table, and the study continues
        traceback.print_exc()  # into the run's output
        measured = {**_measured(listeners), "wall_s": time.time() - record.began}
        ended = replace(record, error=_told(error), **measured)
    else:
        ended = replace(record, status="finished", values=values, lower=lower, **_measured(listeners), **clock)
    try:
        write_record(ended, place)
    except OSError as error:
        return replace(ended, status="failed", error=f"its record could not be written: {error}")
    return ended


def _told(error: BaseException) -> str:
    return str(error) if isinstance(error, EngineError) else cause_of(error)


def _measured(listeners: list[Measuring]) -> dict[str, Any]:
    """Return what was measured, if the run came so far."""
    if not listeners:
        return {}
    (measuring,) = listeners
    names = ("seconds", "unit", "wall_s", "forward_rows", "weights", "device")
    rows = None if measuring.forward_rows is None else measuring.backward_rows
    return {**{name: getattr(measuring, name) for name in names}, "backward_rows": rows, "data": tuple(measuring.data)}


def _train(job: Job, folder: Path, listeners: list[Measuring]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the values, which of them are better lower, and how far the run went.

    Args:
        folder: of the study.
        listeners: receives what measures the run, once it is made.
    """
    stopping = _EndingWithStudy(folder / STOP)
    stopping.check()
    if job.make:
        trainer = _made_and_trained(job, listeners)
    else:
        trainer = _trained_by_core(job, folder / job.folder, listeners, stopping)
    results, now = trainer.state.results, trainer.state.timestamp
    # All of them, so that a study that reports others later finds them.
    values = {name: _number(value) for name, value in results.last.items()}
    lower = {name: results.is_lower_better(name) for name in values}
    return values, lower, {"samples": now.sample, "tokens": now.token, "batches": now.batch}


def _trained_by_core(job: Job, place: Path, listeners: list[Measuring], stopping: _EndingWithStudy) -> Any:
    """Train what a config describes in the run's folder, or resume it there; return the Trainer."""
    import_beside(Path(job.base))
    # By the config, so that a resumed run counts on, and sees the weights before an algorithm changes the model.
    callbacks = [*job.config.get("callbacks", ()), {"target": f"{__name__}:{Measuring.__name__}"}]
    settings = {**job.config.get("trainer", {}), "autoresume": True}
    run = Run(check_config({**job.config, "callbacks": callbacks, "trainer": settings}, job.base), place)
    listeners += [each for each in run.trainer.state.callbacks if isinstance(each, Measuring)]
    run.trainer.engine.host.register(_Fingerprint(*listeners))
    run.trainer.state.callbacks.append(stopping)
    try:
        ending = run.train()
    except BaseException as error:
        run.reporter.end_with(run.end(error))
        raise
    run.reporter.end_with(ending)
    if ending.status == "paused":
        stopping.check()
    if ending.status != "finished":
        raise ArgumentError(f"the run {ending.status} at batch {ending.batch}, before its end: {ending.why}")
    if ending.lost:
        raise ArgumentError("; ".join(ending.lost))
    return run.trainer


def _made_and_trained(job: Job, listeners: list[Measuring]) -> Any:
    """Train what the factory makes; return the Trainer."""
    assert job.make is not None
    measuring = Measuring()
    listeners.append(measuring)
    with job.make(job.seed, list(job.config["algorithms"])) as trainer:
        measuring.init(trainer.state, trainer.logger)
        trainer.state.callbacks.append(measuring)
        trainer.engine.host.register(_Fingerprint(measuring))
        trainer.fit()
        if trainer.state.evaluators:
            trainer.eval()
    return trainer


class _EndingWithStudy(Callback):
    """Pauses a run once the study was interrupted, which may be on another machine: a file says so.

    Args:
        file: which it is.
    """

    def __init__(self, file: Path) -> None:
        self._file, self._looks_s = file, 0.0

    def check(self) -> None:
        """Raise KeyboardInterrupt if the file is there."""
        if self._file.exists():
            raise KeyboardInterrupt

    def batch_end(self, state: State, logger: Logger) -> None:
        """Look for the file, at most once a second."""
        if time.monotonic() >= self._looks_s:
            self._looks_s = time.monotonic() + 1
            if self._file.exists():
                state.pause_training("the study was interrupted")


class _Fingerprint:
    """Sees each batch as loaded, before the algorithms."""

    def __init__(self, measuring: Measuring) -> None:
        self._take = measuring.take

    @hookimpl(wrapper=True)
    def after_dataloader(self, state: State) -> Any:
        """Take the fingerprint of the first batch of an epoch."""
        if not state.timestamp.batch_in_epoch:
            self._take(state.batch)
        return (yield)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def check_job(job: Job, folder: Path | str) -> dict[str, bool | None]:
    """Make all that a run needs, train it on one batch, leave nothing; return which of its results are better lower.

    Raises:
        EngineError: for what can't be made. Exceptions of the run's own code pass through.
    """
    import_beside(Path(job.base))
    config = check_config(job.config, job.base)
    try_config(config, Path(folder, job.folder) if not os.path.lexists(Path(folder, job.folder)) else None)
    results = Results()
    results.set_directions(**config.results.model_dump())
    results.ask({str(place.keys[-1]): build(target, place) for target, place in config.entries("metrics")})
    return {name: results.is_lower_better(name) for name in job.values}
