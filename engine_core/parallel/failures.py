"""A rank that fails ends the others: it writes why on the board, and a thread of each rank looks there."""

from __future__ import annotations

import atexit
import json
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from ..errors import RankError
from .board import Board, Failure, Place, in_words

_LOOK_S = 1.0
"""How often the thread looks at the board."""
_LEAVE_S = 5.0
"""How long the main thread may take from there to raise a RankError."""
_CLOSE_S = 6.0
"""How long the process may live on after that: all have ended within 15 seconds."""
_OF_MESSAGES = re.compile(r"gloo|nccl|connection (was )?(closed|reset)|broken pipe|operation timed out", re.IGNORECASE)
_TORCH, _HERE = (str(Path(file).parent) + os.sep for file in (torch.__file__, __file__))
_NOT_SHOWN = (_TORCH, _HERE, str(Path(os.__file__).parent) + os.sep)
_WAITS_IN = (_HERE, f"{_TORCH}distributed{os.sep}", f"{_TORCH}autograd{os.sep}graph.py")
"""Code that waits for other ranks; the last is `backward`, where DistributedDataParallel waits."""


class Failures:
    """What this rank tells the others when it fails, and what it learns of their failures.

    The main thread raises what has happened. If it can't, because it waits for the others or runs the user's code, the
    thread that looks at the board ends the process.

    Args:
        leave: leaves the process group, so that no other rank waits for this one.
        timeout: how long a rank waits for the others, in words.
        end: ends the process with this exit code.
    """

    def __init__(
        self, rank: int, board: Board, leave: Callable[[], None], timeout: str, end: Callable[[int], Any] = os._exit
    ) -> None:
        self._rank, self._board, self._leave, self._timeout, self._end = rank, board, leave, timeout, end
        self._main = threading.get_ident()
        self._is_ending, self._is_closed = threading.Event(), threading.Event()
        self._has_failed = False
        self.number = 0
        """How many runs of this process have ended with an error before: each has entries of its own on the board."""
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
        if self._is_ending.is_set():
            return error
        if isinstance(error, RuntimeError) and _OF_MESSAGES.search(str(error)) and _is_torchs(error):
            return self._because_of_others(error)
        self._has_failed = not isinstance(error, RankError)  # which tells what all know
        lines, at = _lines_of(error), time.time()
        if self._has_failed:
            self._board.tell(f"rank {self._rank} failed: {type(error).__name__}: {error}", lines, at)
        self._finish(error, lines, at)  # what the others record is later than what they are told
        if self._has_failed:
            self._board.let_others_read()
        return error

    @property
    def has_ended(self) -> bool:
        """Has a run ended with an error, which all ranks may have caught?"""
        return self._is_ending.is_set()

    def are_known(self) -> bool:
        """Is this rank ending, or has another one failed?"""
        return self._is_ending.is_set() or self._board.is_told()

    def close(self) -> None:
        """End the thread, before the interpreter does: it might be in torch's code."""
        self._is_closed.set()
        self._thread.join(2 * _LOOK_S)

    def _because_of_others(self, error: BaseException) -> RankError:
        """Return the RankError for a collective that failed; if no rank has told why, ask where each is."""
        failure = self._board.told()
        is_first_to_know = failure is None
        if failure is None:
            self._board.answer(Place(_place_of(error), waits=True))
            places = self._board.ask()
            if (failure := self._board.told()) is None:
                failure = Failure(in_words(places, self._rank, self._timeout, error), at=time.time())
                self._board.tell(failure.what, failure.traceback, failure.at)
        ended = RankError(f"rank {self._rank} ends because {failure.what}").with_traceback(error.__traceback__)
        ended.__suppress_context__ = True  # that a connection closed says nothing more
        self._finish(ended, _with_cause(ended, failure), max(time.time(), failure.at + 1))
        if is_first_to_know:
            self._board.let_others_read()
        return ended

    def _finish(self, error: BaseException, lines: str, at: float) -> None:
        self._is_ending.set()
        record(error, lines, at)
        with suppress(Exception):  # nothing may replace the first error
            self._leave()

    def _watch(self) -> None:
        """Look at the board until the process ends; if a rank has failed, see to it that it does."""
        while not self._is_closed.wait(_LOOK_S):
            if (failure := self._board.told()) is not None:
                break
            if self._board.is_asked():
                frame = sys._current_frames().get(self._main)  # noqa: SLF001  torch has no public way either
                self._board.answer(Place(_place_in(frame), waits=frame is not None and _waits(frame)))
        else:
            return
        in_time = self._is_ending.wait(_LEAVE_S)
        if self._is_closed.is_set() or self._has_failed or (in_time and self._is_closed.wait(_CLOSE_S)):
            return
        error = RankError(f"rank {self._rank} ends because {failure.what}")
        if not in_time:
            record(error, _with_cause(error, failure), max(time.time(), failure.at + 1))
        frame = sys._current_frames().get(self._main)  # noqa: SLF001
        stack = "".join(traceback.format_stack(frame))
        with suppress(Exception):
            print(f"{stack}engine_core.errors.RankError: {error}", file=sys.stderr, flush=True)  # noqa: T201
            sys.stdout.flush()
        self._end(1)


_of_group: tuple[Any, Failures] | None = None
"""Those of the process group that this process is in, as torch has one too, and the group's store."""


def store_of_group() -> Any:
    """Return the store of the default process group."""
    return dist.distributed_c10d._get_default_store()  # noqa: SLF001  torch has no public way


def failures_of_group(timeout: str, *, leaves: bool) -> Failures:
    """Return the failures of the ranks of the default process group, which a run after another shares.

    Args:
        timeout: how long a rank waits for the others, in words.
        leaves: is the group ours, to be left after a failure?
    """
    global _of_group  # noqa: PLW0603
    store = store_of_group()
    if _of_group is None or _of_group[0] is not store or _of_group[1].has_ended:
        number = 0
        if _of_group is not None:
            _of_group[1].close()
            number = _of_group[1].number + 1
        own = store.clone() if hasattr(store, "clone") else store  # else it is locked while the main thread waits
        board = Board(own, dist.get_rank(), dist.get_world_size(), number)
        leave = leave_group if leaves else lambda: None
        _of_group = store, Failures(dist.get_rank(), board, leave, timeout)
        _of_group[1].number = number
        atexit.register(_of_group[1].close)
    return _of_group[1]


def leave_group() -> None:
    """Leave the default process group, if it is still there."""
    if dist.is_initialized():
        # Older torches hold the GIL while they wait for gloo's threads, and a thread that frees the tensors of the last
        # message waits for the GIL. Asleep, this thread lets it have the GIL first.
        time.sleep(0.1)
        dist.destroy_process_group()


def guard(communicate: Callable[[], Any]) -> None:
    """Call a collective of the default process group; raise a RankError if it fails because of another rank."""
    if _of_group is None:
        communicate()
    else:
        _of_group[1].guard(communicate)


def ends_with(error: BaseException) -> BaseException:
    """Return the exception that this process ends with, once the other ranks, if there are any, know that it does.

    It is a RankError if the end of another rank led to `error`, else `error`.
    """
    if _of_group is not None:
        return _of_group[1].ends_with(error)
    if "TORCHELASTIC_ERROR_FILE" in os.environ:  # of torchrun, whose summary shows it
        record(error, _lines_of(error), time.time())
    return error


def _lines_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


def _is_torchs(error: BaseException) -> bool:
    """Was it raised in torch's code, rather than by what says something similar elsewhere?"""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and frames[-1].f_code.co_filename.startswith((_TORCH, _HERE))


def _waits(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_WAITS_IN)


def _place_of(error: BaseException) -> str:
    """Return where a collective failed: in the frames that the error has left, or else in those above."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][::-1]
    return next((place for frame in [*frames, sys._getframe()] if (place := _place_in(frame))), "")  # noqa: SLF001


def _place_in(frame: FrameType | None) -> str:
    """Return the innermost place that is neither in torch or Python's library nor here."""
    for found, line in traceback.walk_stack(frame):
        code = found.f_code
        if not code.co_filename.startswith(_NOT_SHOWN):
            return f"{code.co_filename}:{line} in {code.co_name}"
    return ""


def _with_cause(error: BaseException, failure: Failure) -> str:
    return f"{type(error).__name__}: {error}\n\n{failure.traceback}"


def record(error: BaseException, lines: str, at: float) -> None:
    """Write the error where torchrun looks for what its summary shows; of several the earliest is called the cause."""
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        extra = {"py_callstack": lines, "timestamp": str(int(at))}
        with suppress(OSError):
            message = {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}
            Path(path).write_text(json.dumps({"message": message}), encoding="utf-8")
