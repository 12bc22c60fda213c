"""The runs of a study, on this machine's processes or on an executor: none is trained twice, none is lost."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine_core.errors import ArgumentError, EngineError
from engine_core.messages import cause_of

from .design import Design, Job, reported_jobs, tuning_jobs
from .record import STOP, Record, read_record, write_record

_IMPORTED_BY = os.getpid()
OUTPUT = "output.txt"
"""What a run prints goes to this file in its folder."""


class Study:
    """The runs of a design in a folder.

    Args:
        tell: receives what happens: the record of a run that ended, or the Job of one that begins.
    """

    def __init__(self, design: Design, folder: Path, tell: Callable[[Job | Record], object] = lambda _: None) -> None:
        self.design, self.folder, self._tell = design, folder, tell
        self.left_out: list[Job] = []
        self._ended: list[Record] = []
        self._done: dict[str, Record] = {}  # they stay as they are, so each is read once

    def records(self, jobs: Iterable[Job]) -> dict[str, Record]:
        """Return what is known of these runs, by folder."""
        found = {job.folder: self._done.get(job.folder) or read_record(job, self.folder) for job in jobs}
        known = {name: record for name, record in found.items() if record is not None}
        self._done.update({name: record for name, record in known.items() if record.status == "finished"})
        return known

    def missing(self, jobs: Sequence[Job]) -> list[Job]:
        """Return those of these runs that have not finished."""
        done = self.records(jobs)
        return [job for job in jobs if job.folder not in done or done[job.folder].status != "finished"]

    def chosen(self) -> dict[str, int]:
        """Return the setting of each arm that is decided: the only one, or the best of those tried; ties: the first."""
        chosen = {arm.name: 0 for arm in self.design.arms if len(arm.settings) == 1}
        jobs = tuning_jobs(self.design)
        records = self.records(jobs)
        for arm in self.design.arms:
            own = [job for job in jobs if job.arm == arm.name]
            tried = [records.get(job.folder) for job in own]
            if own and all(record is not None and record.status != "interrupted" for record in tried):
                found = [value for record in tried if record and (value := self._value(record)) is not None]
                if found:
                    chosen[arm.name] = -max(found)[1]
        return chosen

    def _value(self, record: Record) -> tuple[float, int] | None:
        """Return what chooses, larger for better, with the setting, of which the first wins."""
        by = self.design.choose_by or ""
        value = record.values.get(by) if record.status == "finished" else None
        if value is None:
            return None
        return (-value if record.lower.get(by) else value), -record.setting

    def jobs(self) -> list[Job]:
        """Return all runs that are known by now, in their order."""
        return [*tuning_jobs(self.design), *reported_jobs(self.design, self.chosen())]

    def planned(self) -> list[Job]:
        """Return all runs in their order, with the first setting for an arm that has not chosen."""
        first = {arm.name: 0 for arm in self.design.arms}
        return [*tuning_jobs(self.design), *reported_jobs(self.design, first | self.chosen())]

    def run(self, pool: Pool) -> None:
        """Train what is missing, first what chooses settings."""
        with suppress(OSError):
            (self.folder / STOP).unlink()
        self._ended = list(self.records(self.jobs()).values())
        self._run(tuning_jobs(self.design), pool)
        self._run(reported_jobs(self.design, self.chosen()), pool)

    def _run(self, jobs: Sequence[Job], pool: Pool) -> None:
        missing = self.missing(jobs)
        running: dict[Future[Record], Job] = {}
        try:
            while missing or running:
                while missing and len(running) < pool.width:
                    job = missing.pop(0)
                    if not self._fits(job, running.values(), pool):
                        self.left_out.append(job)
                        continue
                    running[pool.submit(job, self.folder)] = job
                    self._tell(job)
                if not running:
                    break
                ended, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in ended:
                    self._ended.append(record := self._record_of(future, running.pop(future)))
                    self._tell(record)
        except BaseException:
            with suppress(OSError):
                (self.folder / STOP).touch()
            for future in running:
                future.cancel()
            raise

    def _record_of(self, future: Future[Record], job: Job) -> Record:
        """Return the record of a run, and write it for one that could not do that itself."""
        if error := CancelledError() if future.cancelled() else future.exception():
            known = isinstance(error, ProcessEndedError)
            what = str(error) if known else f"the executor failed: {cause_of(error)}"
            record = replace(Record.of(job), error=f"{what}; the same command resumes it")
        else:
            record = future.result()
        if error or read_record(job, self.folder) is None:
            with suppress(OSError):  # then it is missing, which the table says too
                write_record(record, self.folder / job.folder)
        return record

    def _fits(self, job: Job, running: Iterable[Job], pool: Pool) -> bool:
        """Is there time in the budget for a run beside those that train, as far as is known how long each takes?"""
        if self.design.budget_s is None:
            return True
        known = self._ended
        others_s = [record.wall_s for record in known] + [expected(each, known) or 0.0 for each in running]
        spent_s = sum(others_s) / min(pool.width, len(others_s) or 1)
        return spent_s + (expected(job, known) or 0.0) <= self.design.budget_s


def expected(job: Job, known: Iterable[Record]) -> float | None:
    """Return how many seconds a run may take: as the last of its arm and length, of its length, or of any."""
    records = [record for record in known if record.status == "finished"]
    same = [each for each in records if (each.arm, each.length) == (job.arm, job.length)]
    near = same or [each for each in records if each.length == job.length] or records
    return near[-1].wall_s if near else None


class Pool:
    """Trains runs where an executor runs what is submitted, in its own process.

    Args:
        width: how many to submit at once.
    """

    def __init__(self, executor: Executor, width: int) -> None:
        self._executor, self.width = executor, width

    def submit(self, job: Job, folder: Path) -> Future[Record]:
        """Begin to train a run."""
        return self._executor.submit(_train, job, folder.absolute())


def _train(job: Job, folder: Path) -> Record:
    from .job import train_job  # noqa: PLC0415  it needs torch, and what submits it does not

    record = train_job(job, folder)
    if record.status == "interrupted":
        raise KeyboardInterrupt  # the study's too, which is in this process
    return record


class _Processes(Pool):
    """Trains each run in a process of its own, which a run that is killed does not share with others."""

    def __init__(self, executor: Executor, width: int, threads: int | None) -> None:
        super().__init__(executor, width)
        self._threads, self._context = threads, context()
        self._slots: queue.SimpleQueue[int] = queue.SimpleQueue()
        for slot in range(width):
            self._slots.put(slot)

    def submit(self, job: Job, folder: Path) -> Future[Record]:
        """Begin to train a run."""
        return self._executor.submit(self._train, job, folder)

    def _train(self, job: Job, folder: Path) -> Record:
        slot = self._slots.get()
        try:
            record: Record = in_process(self._context, _train_here, job, folder, self._threads, slot)
            return record
        finally:
            self._slots.put(slot)


class Workers(Pool):
    """Trains runs on an executor, each in a process of its own there.

    What the executor runs it in may be one of several threads, or a process that has trained before.
    """

    def submit(self, job: Job, folder: Path) -> Future[Record]:
        """Begin to train a run; what the executor raises is in the future."""
        future: Any
        try:
            future = self._executor.submit(_train_elsewhere, job, folder.absolute(), Path.cwd())
        except Exception as error:  # noqa: BLE001  as if the run had failed
            future = Future[Record]()
            future.set_exception(error)
        if not isinstance(future, Future):
            found = f"{type(future).__module__}.{type(future).__qualname__}"
            raise ArgumentError(f"the executor's submit has to return a concurrent.futures.Future, not a {found}")
        return future


def _train_elsewhere(job: Job, folder: Path, here: Path) -> Record:
    # Dask's workers are daemonic, and such processes must not have children, which may outlive them: these don't.
    multiprocessing.current_process().daemon = False
    is_forked = os.getpid() != _IMPORTED_BY  # from the study, whose server for forks does not serve it
    made = multiprocessing.get_context("spawn") if is_forked else context()
    record: Record = in_process(made, _train_here, job, folder, None, 0, here)
    return record


@contextmanager
def processes(jobs: int, threads: int | None) -> Iterator[Pool]:
    """Provide a pool of processes on this machine; it waits for those that run."""
    with ThreadPoolExecutor(jobs) as executor:
        yield _Processes(executor, jobs, threads)


def context() -> Any:
    """Return how processes are started: from one that has imported torch, where the system can."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["engine_core_study.warm"])
    return made


def in_process(made: Any, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function in a process of its own and return its result, or raise its error.

    Raises:
        ProcessEndedError: if something ended the process.
    """
    receiver, sender = made.Pipe(duplex=False)
    with receiver:
        process = made.Process(target=_answer, args=(sender, function, args))
        process.start()
        sender.close()  # so that only the process has it, and its end is the end of the pipe
        try:
            is_result, answer = receiver.recv()
        except EOFError:
            process.join()
            told = f"its process ended before it could answer (exit code {process.exitcode})"
            raise ProcessEndedError(told) from None
        process.join()
    if is_result:
        return answer
    raise answer


class ProcessEndedError(EngineError):
    """A process ended before it could answer, as the system ends one for lack of memory."""


def _answer(sender: Any, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    _end_with_parent()
    try:
        answer = True, function(*args)
    except Exception as error:  # noqa: BLE001  the parent raises it
        answer = False, error
    sender.send(answer)


def _end_with_parent() -> None:
    """End this process when the study's is gone, so that the same command finds no run that still trains."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _train_here(job: Job, folder: Path, threads: int | None, slot: int, here: Path | None = None) -> Record:
    """Train in this process, whose output goes to a file; of several GPUs each slot has its own.

    Args:
        here: the study's current folder, to which paths in a config are relative; None: that of this process too.
    """
    import torch  # noqa: PLC0415  as above

    from .job import train_job  # noqa: PLC0415

    place = folder / job.folder
    try:
        os.chdir(here or ".")
        place.mkdir(parents=True, exist_ok=True)
        file = os.open(place / OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    except OSError as error:
        return replace(Record.of(job), error=f"its folder can't be written to: {error}")
    _wait_for_others(file)
    if (ended := read_record(job, folder)) is not None and ended.status == "finished":
        return ended
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(file, 1)
    os.dup2(file, 2)
    if threads is not None and torch.cuda.is_available() and torch.cuda.device_count() > 1:
        torch.cuda.set_device(slot % torch.cuda.device_count())
    return train_job(job, folder, threads)


def _wait_for_others(file: int) -> None:
    """Wait until no other process has this file locked, and lock it for as long as this process lives.

    If a study was killed, its executor may still train a run that the same command submits again.
    """
    if sys.platform != "win32":
        import fcntl  # noqa: PLC0415  Windows has none

        with suppress(OSError):  # a file system without locks
            fcntl.lockf(file, fcntl.LOCK_EX)


@contextmanager
def executor_of(target: str, find: Callable[[str], Any]) -> Iterator[Executor]:
    """Provide the executor that `module:callable` returns, or that its context manager gives, and end it afterwards.

    Raises:
        ArgumentError: (a ValueError) if it is something else.
    """
    made = find(target)()
    if not isinstance(made, AbstractContextManager):
        raise _not_an_executor(target, made)
    with made as executor:
        if not isinstance(executor, Executor):
            raise _not_an_executor(target, executor)
        yield executor


def _not_an_executor(target: str, made: object) -> ArgumentError:
    return ArgumentError(f"--executor {target}: has to return a concurrent.futures.Executor, not {made!r:.100}")


def check_jobs(
    design: Design, folder: Path, tell: Callable[[str], object] = lambda _: None, *, apart: bool = True
) -> dict[str, bool | None]:
    """Try each arm and each tuned value on one batch, and return which results are better lower.

    Args:
        apart: in processes, instead of this one.

    Raises:
        EngineError: with the arm, for what can't be made, or a result of which nothing says which value is better.
    """
    if design.make is not None:
        return {}
    made, lower = context(), dict[str, bool | None]()
    for arm in design.arms:
        seen: set[str] = set()
        for index, setting in enumerate(arm.settings):
            parts = {*setting.label.split(", ")}
            if index and parts <= seen:
                continue
            seen |= parts
            job = reported_jobs(replace(design, arms=(arm,), baseline=arm.name), {arm.name: index})[-1]
            tell(arm.name)
            try:
                lower |= in_process(made, _check_here, job, folder) if apart else _check_here(job, folder)
            except EngineError as error:
                raise type(error)(f"arm {arm.name!r}: {error}") from error
    for name in (*design.report, *([design.choose_by] if design.choose_by else ())):
        if lower.get(name) is None:
            remedy = "say it in the base, under results: {higher: [...]} or {lower: [...]}"
            raise ArgumentError(f"nothing says which value of {name!r} is better: {remedy}")
    return lower


def _check_here(job: Job, folder: Path) -> Mapping[str, bool | None]:
    from .job import check_job  # noqa: PLC0415  as above

    try:
        return check_job(job, folder)
    except EngineError:
        raise
    except Exception as error:  # noqa: BLE001  the user's own may not survive the way to another process
        raise EngineError(cause_of(error)) from None
