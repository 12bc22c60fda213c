"""One write at a time, in the background; errors are raised at the next write or at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from math import inf

from ..errors import CheckpointWarning
from ..messages import enumerated, warn
from ..ranks import Ranks


class BackgroundWriter:
    """Runs one function at a time in a thread of its own."""

    def __init__(self) -> None:
        self._pending: tuple[Future[None], threading.Thread] | None = None

    @property
    def is_busy(self) -> bool:
        """Is a write under way?"""
        return self._pending is not None and not self._pending[0].done()

    def start(self, write: Callable[[], None]) -> None:
        """Begin a write; wait for the previous one first, and raise what it raised."""
        self.wait()
        result: Future[None] = Future()

        def run() -> None:
            if not result.set_running_or_notify_cancel():
                return
            try:
                write()
            except BaseException as error:  # noqa: BLE001  raised where it can be caught
                result.set_exception(error)
            else:
                result.set_result(None)

        thread = threading.Thread(target=run, name="engine-core checkpoint")
        self._pending = result, thread  # before it starts: a signal handler may raise as soon as it runs
        try:
            thread.start()
        except BaseException:
            if result.cancel():  # it has not begun to write, and won't
                self._pending = None
            raise

    def wait_for_all(self, ranks: Ranks) -> None:
        """Wait until no rank writes, in turns: a write may take longer than a rank waits for the others.

        If it does, rank 0 warns once of those that still write.
        """
        warns_at = time.monotonic() + ranks.timeout_s
        while ranks.size > 1:
            table = ranks.table([not self._ends_within(min(1.0, ranks.timeout_s / 2))])
            writing = [f"rank {rank}" for rank, (writes,) in enumerate(table) if writes]
            if not writing:
                return
            if not ranks.rank and time.monotonic() > warns_at:
                warns_at = inf
                who = f"{enumerated(writing)} {'are' if writing[1:] else 'is'}"
                warn(
                    f"{who} still writing a checkpoint after {ranks.timeout_s:g} s, and all ranks wait for that",
                    CheckpointWarning,
                )

    def _ends_within(self, seconds: float) -> bool:
        return self._pending is None or not wait([self._pending[0]], seconds).not_done

    def raise_error(self) -> None:
        """Raise what the previous write raised, once; don't wait for one that is under way."""
        if not self.is_busy:
            self.wait()

    def wait(self) -> None:
        """Wait for the write and its thread to end, and raise what it raised, once."""
        if self._pending is not None:
            result, thread = self._pending
            error = result.exception()  # interrupted here, it stays pending for the next call
            thread.join()  # only now: interrupted by a signal handler, a join claims that the thread has ended
            self._pending = None
            if error is not None:
                raise error
