"""The ranks of a process group; one that fails ends the others."""

from __future__ import annotations

import atexit
import datetime as dt
import json
import os
import re
import signal
import sys
import threading
import time
import traceback
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ..batch import map_batch
from ..errors import EngineError, RankError
from ..messages import warn
from ..ranks import Deal, Ranks
from ..signals import SignalGuard
from .rows import CAN_NOT_MOVE, Move, placeholder_of, signature_of
from .settings import FSDP, Parallel, has_group

_LOOK_S = 1.0
"""How often the thread looks into the store."""
_LEAVE_S = 5.0
"""How long the main thread may take from there to raise a RankError."""
_CLOSE_S = 6.0
"""How long the process may live on after that: all have ended within 15 seconds."""
_ANSWER_S = 3.0
"""How long to wait for the ranks to say where they are."""
_READ_S = 2.0
"""How long the rank whose process holds the store lives on for the others to read it."""
_LONGEST, _LONGEST_TRACEBACK = 500, 8000
_OF_MESSAGES = re.compile(r"gloo|nccl|connection (was )?(closed|reset)|broken pipe|operation timed out", re.IGNORECASE)
_TORCH, _HERE = (str(Path(file).parent) + os.sep for file in (torch.__file__, __file__))
_NOT_SHOWN = (_TORCH, _HERE, str(Path(os.__file__).parent) + os.sep)
_WAITS_IN = (_HERE, f"{_TORCH}distributed{os.sep}", f"{_TORCH}autograd{os.sep}graph.py")
"""Code that waits for other ranks; the last is `backward`, where DistributedDataParallel waits."""


class Failure(NamedTuple):
    """The first failure of a run: in words that follow "rank 0 ends because", that rank's traceback, and the time."""

    what: str
    traceback: str
    at: float


class Failures:
    """What this rank tells the others when it fails, and what it learns of their failures.

    The main thread raises what has happened. If it can't, because it waits for the others or runs the user's code, the
    thread that looks into the store ends the process. If the store is gone, nothing is written or found.

    Args:
        store: of the process group, for this run alone.
        timeout: how long a rank waits for the others, in words.
        leave: leaves the process group, so that no other rank waits for this one.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        timeout: str,
        leave: Callable[[], None],
        end: Callable[[int], Any] = os._exit,
    ) -> None:
        self._store, self._rank, self._size, self._timeout = store, rank, size, timeout
        self._leave, self._end, self._main = leave, end, threading.get_ident()
        self._is_ending, self._is_closed = threading.Event(), threading.Event()
        self._has_failed = False
        self._thread = threading.Thread(target=self._watch, name="engine-core failures", daemon=True)
        self._thread.start()

    def guard(self, communicate: Callable[[], Any]) -> None:
        """Call a collective; raise a RankError if it fails, which is because of another rank."""
        try:
            communicate()
        except RuntimeError as error:
            raise self._because_of_others(error)  # noqa: B904  which hides what it comes from

    def ends_with(self, error: BaseException) -> BaseException:
        """Return the exception that this rank ends with, once the others know and the group is left.

        It is a RankError if the end of another rank led to `error`, else `error`.
        """
        if self.has_ended:
            return error
        is_torchs = isinstance(error, RuntimeError) and not isinstance(error, EngineError)
        if is_torchs and _OF_MESSAGES.search(str(error)):
            return self._because_of_others(error)
        self._has_failed = not isinstance(error, RankError)  # which tells what all know
        lines, at = _lines_of(error), time.time()
        if self._has_failed:
            self._tell(f"rank {self._rank} failed: {type(error).__name__}: {error}", lines, at)
        self._finish(error, lines, at)  # what the others record is later than what they are told
        return error

    @property
    def has_ended(self) -> bool:
        """Has the run ended with an error, which all ranks may have caught?"""
        return self._is_ending.is_set()

    def are_known(self) -> bool:
        """Is this rank ending, or has another one failed?"""
        return self.has_ended or self._has("failed")

    def close(self) -> None:
        """End the thread, before the interpreter does: it might be in torch's code."""
        self._is_closed.set()
        self._thread.join(2 * _LOOK_S)

    def _because_of_others(self, error: BaseException) -> RankError:
        """Return the RankError for a collective that failed; if no rank has told why, ask where each is."""
        if (failure := self._told()) is None:
            self._set("asked", "yes")
            keys = [f"place/{rank}" for rank in range(self._size)]
            _wait(lambda: self._has(*keys) or self._has("failed"), _ANSWER_S)
            what = _in_words([self._get(key) for key in keys], self._rank, self._timeout, error)
            failure = self._tell(what, "", time.time())
        ended, lines, at = self._because(failure)
        ended = ended.with_traceback(error.__traceback__)
        ended.__suppress_context__ = True  # that a connection closed says nothing more
        self._finish(ended, lines, at)
        return ended

    def _because(self, failure: Failure) -> tuple[RankError, str, float]:
        """Return the error that another rank's failure is here, its lines and its time, later than what led to it."""
        error = RankError(f"rank {self._rank} ends because {failure.what}")
        return error, f"RankError: {error}\n\n{failure.traceback}", max(time.time(), failure.at + 1)

    def _finish(self, error: BaseException, lines: str, at: float) -> None:
        self._is_ending.set()
        record(error, lines, at)
        with suppress(Exception):  # nothing may replace the first error
            self._leave()
        if not self._rank and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":  # it holds the store
            _wait(lambda: self._has(*(f"read/{rank}" for rank in range(1, self._size))), _READ_S)

    def _watch(self) -> None:
        """Look into the store until the process ends; if a rank has failed, see to it that it does."""
        while not self._is_closed.wait(_LOOK_S):
            if (failure := self._told()) is not None:
                break
            if self._has("asked"):
                self._set(f"place/{self._rank}", json.dumps(_place_in(self._frame())))
        else:
            return
        in_time = self._is_ending.wait(_LEAVE_S)
        if self._is_closed.is_set() or self._has_failed or (in_time and self._is_closed.wait(_CLOSE_S)):
            return
        error, lines, at = self._because(failure)
        if not in_time:
            record(error, lines, at)
        stack = "".join(traceback.format_stack(self._frame()))
        with suppress(Exception):
            print(f"{stack}engine_core.errors.RankError: {error}", file=sys.stderr, flush=True)  # noqa: T201
            sys.stdout.flush()
        self._end(1)

    def _frame(self) -> FrameType | None:
        """Return where the main thread is."""
        return sys._current_frames().get(self._main)  # noqa: SLF001  documented, in spite of its name

    def _tell(self, what: str, lines: str, at: float) -> Failure:
        """Tell the others why the run fails and since when, unless another rank has done so; return what they know."""
        own = Failure(what[:_LONGEST], lines[-_LONGEST_TRACEBACK:], at)
        self._set("failed", json.dumps(own))
        return self._told() or own

    def _told(self) -> Failure | None:
        """Return why the run fails."""
        if (told := self._get("failed")) is None:
            return None
        self._set(f"read/{self._rank}", "yes")
        return Failure(*told)

    def _has(self, *names: str) -> bool:
        try:
            return bool(self._store.check([*names]))
        except RuntimeError:
            return False

    def _get(self, name: str) -> Any:
        with suppress(RuntimeError):
            return json.loads(self._store.get(name)) if self._has(name) else None
        return None

    def _set(self, name: str, value: str) -> None:
        with suppress(RuntimeError):
            self._store.compare_set(name, "", value)  # the second to write changes nothing


_of_groups: list[tuple[Any, Failures]] = []
"""Those of the process groups that this process has been in, each with the group's store; the last one counts."""


def store_of_group() -> Any:
    """Return the store of the default process group."""
    return dist.distributed_c10d._get_default_store()  # noqa: SLF001  torch has no public way


def failures_of_group(timeout: str, *, leaves: bool) -> Failures:
    """Return the failures of the ranks of the default group, which runs share; `leaves`: is it ours to leave?"""
    store = store_of_group()
    if _of_groups:
        former, failures = _of_groups[-1]
        if former is store and not failures.has_ended:
            return failures
        failures.close()
    own = store.clone() if hasattr(store, "clone") else store  # else it is locked while the main thread waits
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    torchs: Any = dist  # whose hints leave out the next name, which its docs have
    of_run = torchs.PrefixStore(f"engine-core/{restarts}/{len(_of_groups)}", own)
    leave = leave_group if leaves else lambda: None
    failures = Failures(of_run, dist.get_rank(), dist.get_world_size(), timeout, leave)
    _of_groups.append((store, failures))
    atexit.register(failures.close)
    return failures


def leave_group() -> None:
    """Leave the default process group, if it is still there."""
    if dist.is_initialized():
        # Older torches hold the GIL while they wait for gloo's threads, and a thread that frees the tensors of the last
        # message waits for the GIL. Asleep, this thread lets it have the GIL first.
        time.sleep(0.1)
        dist.destroy_process_group()


def guard(communicate: Callable[[], Any]) -> None:
    """Call a collective of the default process group; raise a RankError if it fails because of another rank."""
    if _of_groups:
        _of_groups[-1][1].guard(communicate)
    else:
        communicate()


def ends_with(error: BaseException) -> BaseException:
    """Return the exception that this process ends with, once the other ranks, if there are any, know that it does.

    It is a RankError if the end of another rank led to `error`, else `error`.
    """
    if _of_groups:
        return _of_groups[-1][1].ends_with(error)
    record(error)
    return error


def record(error: BaseException, lines: str | None = None, at: float | None = None) -> None:
    """Write the error where torchrun's summary looks for it; torchrun calls the earliest error the cause."""
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        stack, now = _lines_of(error) if lines is None else lines, time.time() if at is None else at
        extra = {"py_callstack": stack, "timestamp": str(int(now))}
        with suppress(OSError):
            message = {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}
            Path(path).write_text(json.dumps({"message": message}), encoding="utf-8")


def _in_words(places: Sequence[Any], own: int, timeout: str, error: BaseException) -> str:
    """Return why the ranks waited in vain, by where each is; `own` is the rank that asked."""
    if places[own] is None:  # its thread has just written where it is
        return "the store that the ranks share is gone, with the process that holds it"
    if gone := [rank for rank, place in enumerate(places) if place is None]:
        return f"{_named(gone)} gone"
    if "timed out" not in str(error).lower():
        return f"a message between the ranks failed: {error}"
    late = [rank for rank, (_, waits) in enumerate(places) if not waits]
    told = ", ".join(f"rank {rank} is at {places[rank][0]}" for rank in late or range(len(places)))
    if not late:
        return f"the ranks waited {timeout} for different messages: {told}"
    return f"{_named(late)} late by more than {timeout}: {told}"


def _named(ranks: list[int]) -> str:
    return f"rank {ranks[0]} is" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} are"


def _place_in(frame: FrameType | None) -> tuple[str, bool]:
    """Return the innermost place that is neither in torch or Python's library nor here; and do others wait there?"""
    waits = frame is not None and frame.f_code.co_filename.startswith(_WAITS_IN)
    for found, line in traceback.walk_stack(frame):
        code = found.f_code
        if not code.co_filename.startswith(_NOT_SHOWN):
            return f"{code.co_filename}:{line} in {code.co_name}", waits
    return "", waits


def _wait(condition: Callable[[], bool], most_s: float) -> None:
    ends_s = time.monotonic() + most_s
    while not condition() and time.monotonic() < ends_s:
        time.sleep(0.05)


def _lines_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


_FRAME = 32
"""Numbers in a message of `table`, the first of which is how many follow; longer ones take a multiple."""


def join(parallel: Parallel | None, device: torch.device | str) -> Ranks:
    """Return the ranks of this run: those of the process group, joined here unless this process is in one."""
    if parallel is None:
        return Ranks()
    is_users = has_group()
    if not is_users:
        uses_cuda = torch.cuda.is_available() and str(device).startswith(("auto", "cuda"))
        backend = "cpu:gloo,cuda:nccl" if uses_cuda else "gloo"
        _join(backend, dt.timedelta(seconds=parallel.timeout_s))
    if dist.get_world_size() == 1:
        return Ranks()
    failures = failures_of_group("its timeout" if is_users else str(parallel.timeout), leaves=not is_users)
    return GroupRanks(failures, parallel)


_stores: list[Any] = []
"""Those of the groups that this process has joined: after a failure that all ranks had alike, another may follow."""


def _join(backend: str, timeout: dt.timedelta) -> None:
    if not _stores:
        with SignalGuard(signal.SIG_DFL, signal.SIGTERM):  # it waits in C++, where Python's handlers can't run
            dist.init_process_group(backend, timeout=timeout)
        atexit.register(leave_group)
        if sys.version_info < (3, 11, 8) and hasattr(os, "register_at_fork"):
            os.register_at_fork(before=_let_threads_finish)
    else:
        # The keys of the group before are still there, and its addresses lead nowhere.
        torchs: Any = dist  # whose hints leave out the next name, which its docs have
        store = torchs.PrefixStore(f"engine-core/{len(_stores)}", _stores[0])
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group(backend, timeout=timeout, store=store, rank=rank, world_size=size)
    _stores.append(store_of_group())


def _let_threads_finish() -> None:
    """Wait until gloo's threads have freed the tensors of the last message, before this process forks.

    They enter Python for it. If a process forks at that moment, as a DataLoader with workers does, the child inherits
    a lock of theirs and waits for it forever: https://github.com/python/cpython/issues/112275.
    """
    time.sleep(0.005)
    sys._current_frames()  # noqa: SLF001  documented; it takes the same lock


class GroupRanks(Ranks):
    """The ranks of the default process group; `failures` raises what a collective's failure means."""

    def __init__(self, failures: Failures, parallel: Parallel) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.is_sharded, self.is_local = isinstance(parallel, FSDP), parallel.data == "local"
        self.timeout_s = parallel.timeout_s
        self._failures, self._call = failures, failures.guard
        self._has_warned = False

    def gather(self, rows: torch.Tensor) -> tuple[torch.Tensor, slice]:
        """Return the rows (n, ...) of all ranks in the order of the global batch, and where this rank's are."""
        own, shape = rows.detach().contiguous(), rows.shape[1:]
        octets = own.view(len(own), shape.numel()).view(torch.uint8)
        table = self.table([len(own), zlib.crc32(repr((own.dtype, shape)).encode())])
        if len({kind for _, kind in table}) > 1:
            raise EngineError(
                f"the ranks gather rows that differ in more than their number; those of rank {self.rank} are "
                f"{own.dtype} of shape {('n', *shape)}"
            )
        counts = [int(count) for count, _ in table]
        # As bytes, since backends differ in the dtypes that they take.
        padded = octets.new_zeros((max(counts), octets.shape[1]))
        padded[: len(own)] = octets
        parts = [torch.empty_like(padded) for _ in counts]
        if padded.numel():
            self._call(lambda: dist.all_gather(parts, padded))
        found = torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])
        start = sum(counts[: self.rank])
        return found.flatten().view(own.dtype).view(sum(counts), *shape), slice(start, start + len(own))

    def table(self, numbers: Sequence[float]) -> list[list[float]]:
        """Return the numbers of each rank, as float64: counts are exact up to 2**53."""
        length = len(numbers)
        # Of one size, so that ranks which send different messages learn of it, and no backend ends the process.
        own = torch.zeros(-(-(length + 1) // _FRAME) * _FRAME, dtype=torch.float64)
        own[0] = length
        own[1 : length + 1] = torch.tensor(numbers, dtype=torch.float64)
        found = [torch.empty_like(own) for _ in range(self.size)]
        self._call(lambda: dist.all_gather(found, own))
        table: list[list[float]] = [row.tolist() for row in found]
        if any(row[0] != length for row in table):
            each = ", ".join(f"rank {rank} sent {int(row[0])} numbers" for rank, row in enumerate(table))
            raise EngineError(
                f"the ranks are at different messages ({each}): all of them call the same methods of state.ranks in "
                "the same order, and none behind `if state.rank == 0`; losses have the same parts on all ranks"
            )
        return [row[1 : length + 1] for row in table]

    def first(self, value: Any) -> Any:
        """Return rank 0's value."""
        values = [None if self.rank else on_cpu(value)]
        self._call(lambda: dist.broadcast_object_list(values, src=0))
        return values[0] if self.rank else value

    def each(self, value: Any) -> list[Any]:
        """Return the value of each rank, of the kinds that `first` takes."""
        values: list[Any] = [None] * self.size
        own = on_cpu(value)
        self._call(lambda: dist.all_gather_object(values, own))
        return values

    def is_lost(self) -> bool:
        """Return whether another rank is known to have ended."""
        return self._failures.are_known()

    def has_ended(self) -> bool:
        """Return whether an exception has ended this run."""
        return self._failures.has_ended

    def parts(self, batch: Any, rows: int, *, moves: bool = True) -> tuple[list[int], Deal]:
        """Return how many rows of the global batch each rank has, and a function that deals chosen ones anew."""
        batches = self.batches
        table = self.table([rows, signature_of(batch, batches) if moves else CAN_NOT_MOVE])
        counts, kinds = [int(count) for count, _ in table], {int(kind) for _, kind in table}
        can_move = len(kinds) == 1 and CAN_NOT_MOVE not in kinds

        def deal(index: torch.Tensor) -> tuple[Any, bool]:
            move = Move(counts, index, self)
            if can_move and move.is_needed:
                dealt, is_placeholder = move.run(batch, self, self._call), not move.number
            else:
                if moves and move.is_needed:
                    self._warn_of_staying()
                dealt, is_placeholder = batches.part(batch, move.given), not len(move.given)
            return (placeholder_of(batch, batches) if is_placeholder else dealt), is_placeholder

        return counts, deal

    def _warn_of_staying(self) -> None:
        if not self.rank and not self._has_warned:
            warn(
                "rows of the batch can't be sent from rank to rank, so each rank keeps its own, and their numbers may "
                "differ: that takes tensors of one dtype and shape on all ranks, and lists of plain values",
                UserWarning,
            )
        self._has_warned = True


def on_cpu(value: Any) -> Any:
    """Return what to send of a value: tensors by themselves, on the CPU, as each rank gets them."""

    def alone(leaf: Any) -> Any:
        return leaf.detach().cpu().clone() if isinstance(leaf, torch.Tensor) else leaf

    return map_batch(value, alone)
