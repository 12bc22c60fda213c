"""One write at a time, in the background; errors are raised at the next write or at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future


class BackgroundWriter:
    """Runs one function at a time in a thread of its own."""

    def __init__(self) -> None:
        self._pending: Future[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Is a write under way?"""
        return self._pending is not None and not self._pending.done()

    def start(self, write: Callable[[], None]) -> None:
        """Begin a write; wait for the previous one first, and raise what it raised."""
        self.wait()
        pending: Future[None] = Future()

        def run() -> None:
            try:
                write()
            except BaseException as error:  # noqa: BLE001  raised where it can be caught
                pending.set_exception(error)
            else:
                pending.set_result(None)

        threading.Thread(target=run, name="engine-core checkpoint").start()
        self._pending = pending  # only now: a thread that could not start would never be done

    def raise_error(self) -> None:
        """Raise what the previous write raised, once; don't wait for one that is under way."""
        if not self.is_busy:
            self.wait()

    def wait(self) -> None:
        """Wait for the write to end, and raise what it raised, once."""
        if self._pending is not None:
            error = self._pending.exception()  # interrupted here, it stays pending for the next call
            self._pending = None
            if error is not None:
                raise error
