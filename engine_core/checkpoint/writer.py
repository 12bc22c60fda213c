"""One write at a time, beside training: errors come up where the next one is asked for, or at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["BackgroundWriter"]


class BackgroundWriter:
    """Runs one function at a time in a thread of its own."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._done = threading.Event()  # a join that a signal's handler breaks off says that the thread has ended
        self._error: BaseException | None = None

    @property
    def is_busy(self) -> bool:
        """Is a write under way?"""
        return self._thread is not None and not self._done.is_set()

    def start(self, write: Callable[[], None]) -> None:
        """Begin a write; wait for the former one first, and raise what it raised."""
        self.wait()

        def run() -> None:
            try:
                write()
            except BaseException as error:  # noqa: BLE001  raised where somebody can catch it
                self._error = error
            finally:
                self._done.set()

        self._done.clear()
        thread = threading.Thread(target=run, name="engine-core checkpoint")
        thread.start()
        self._thread = thread

    def raise_error(self) -> None:
        """Raise what the former write raised, once; don't wait for one that is under way."""
        if not self.is_busy:
            self.wait()

    def wait(self) -> None:
        """Wait until nothing is written any more, and raise what was raised, once."""
        if self._thread is not None:
            self._done.wait()
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error
