"""One write at a time, in the background; errors are raised at the next write or at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable


class BackgroundWriter:
    """Runs one function at a time in a thread of its own."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._done = threading.Event()  # a join interrupted by a signal handler claims that the thread has ended
        self._error: BaseException | None = None

    @property
    def is_busy(self) -> bool:
        """Is a write under way?"""
        return self._thread is not None and not self._done.is_set()

    def start(self, write: Callable[[], None]) -> None:
        """Begin a write; wait for the previous one first, and raise what it raised."""
        self.wait()

        def run() -> None:
            try:
                write()
            except BaseException as error:  # noqa: BLE001  raised where it can be caught
                self._error = error
            finally:
                self._done.set()

        self._done.clear()
        thread = threading.Thread(target=run, name="engine-core checkpoint")
        thread.start()
        self._thread = thread

    def raise_error(self) -> None:
        """Raise what the previous write raised, once; don't wait for one that is under way."""
        if not self.is_busy:
            self.wait()

    def wait(self) -> None:
        """Wait for the write to end, and raise what it raised, once."""
        if self._thread is not None:
            self._done.wait()
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error
