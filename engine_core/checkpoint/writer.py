"""One write at a time, beside training: errors come up where the next one is asked for, or at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["BackgroundWriter"]


class BackgroundWriter:
    """Runs one function at a time in a thread of its own.

    Example:
        >>> written = []
        >>> writer = BackgroundWriter()
        >>> writer.start(lambda: written.append("checkpoint"))
        >>> writer.wait()
        >>> written
        ['checkpoint']
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def is_busy(self) -> bool:
        """Is a write under way?"""
        return self._thread is not None and self._thread.is_alive()

    def start(self, write: Callable[[], None]) -> None:
        """Begin a write; wait for the former one first, and raise what it raised."""
        self.wait()

        def run() -> None:
            try:
                write()
            except BaseException as error:  # noqa: BLE001  raised where somebody can catch it
                self._error = error

        self._thread = threading.Thread(target=run, name="engine-core checkpoint")
        self._thread.start()

    def raise_error(self) -> None:
        """Raise what the former write raised, once; don't wait for one that is under way."""
        if not self.is_busy:
            self.wait()

    def wait(self) -> None:
        """Wait until nothing is written any more, and raise what was raised, once."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error
