"""What a logger destination raises stops nobody else: it is told, and one that goes on failing is disabled.

Knows no engine: who calls says by which name a destination is known there.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from .errors import DestinationWarning
from .failures import cause_of
from .warn import warn

if TYPE_CHECKING:
    from .logger import Logger
    from .state import State

__all__ = ["PATIENCE", "Isolation"]

PATIENCE = 3
"""How often in a row one method of a destination may raise; then the destination is disabled."""


class _Trouble:
    """How often in a row each method of a destination has raised."""

    def __init__(self, destination: object) -> None:
        self.destination = destination  # as long as it lives nobody else has its id
        self.in_a_row: Counter[str] = Counter()
        self.is_disabled = False


class Isolation:
    """Calls the destinations of a logger, and keeps the book of those that have raised.

    Only an Exception is kept back; KeyboardInterrupt and SystemExit go on, and so does a DestinationWarning that the
    user's filter has made an error.
    """

    def __init__(self) -> None:
        self.titles: Mapping[int, str] = {}
        self._state: weakref.ref[State] | None = None
        self._troubles: dict[int, _Trouble] = {}

    def begin(self, state: weakref.ref[State]) -> None:
        """Forget what has failed, as a new engine begins, and tell failures with the clock of `state`."""
        self.titles, self._state = {}, state
        self._troubles.clear()

    def tell(self, destinations: Iterable[object], method: str, *values: Any) -> None:
        """Call a method of each destination that is not disabled."""
        troubles = self._troubles
        for destination in destinations:
            if troubles and self._is_disabled(destination):
                continue
            try:
                getattr(destination, method)(*values)
            except DestinationWarning:
                raise
            except Exception as error:  # noqa: BLE001  whatever it is, the run is worth more than its log
                self._report(destination, method, error)
            else:
                if troubles:
                    self._recover(destination, method)

    def listening(
        self, destination: object, event: str, method: Callable[[State, Logger], None], state: State, logger: Logger
    ) -> Callable[[], None]:
        """Return a function that calls a destination's method for an event, unless the destination is disabled."""
        troubles = self._troubles

        def call() -> None:
            if troubles and self._is_disabled(destination):
                return
            try:
                method(state, logger)
            except DestinationWarning:
                raise
            except Exception as error:  # noqa: BLE001  as above
                self._report(destination, event, error)
            else:
                if troubles:
                    self._recover(destination, event)

        return call

    def _is_disabled(self, destination: object) -> bool:
        trouble = self._troubles.get(id(destination))
        return trouble is not None and trouble.is_disabled

    def _recover(self, destination: object, method: str) -> None:
        """Count anew, now that a method has done its work."""
        trouble = self._troubles.get(id(destination))
        if trouble is not None and not trouble.is_disabled:
            trouble.in_a_row.pop(method, None)
            if not trouble.in_a_row:
                del self._troubles[id(destination)]

    def _report(self, destination: object, method: str, error: Exception) -> None:
        """Count a failure and warn of it; the last one that is allowed disables the destination."""
        trouble = self._troubles.setdefault(id(destination), _Trouble(destination))
        trouble.in_a_row[method] += 1
        count = trouble.in_a_row[method]
        trouble.is_disabled |= count >= PATIENCE
        consequence = (
            f"training goes on without it: after {count} failures of {method} in a row it is disabled, and gets "
            "nothing more"
            if trouble.is_disabled
            else f"training goes on, and the other destinations are told; failure {count} of {PATIENCE} in a row, "
            "after which it is disabled"
        )
        warn(
            f"logger destination {self._title(destination)} failed in {method}{self._when()}: {cause_of(error)}; "
            f"{consequence}. To stop instead: "
            "warnings.simplefilter('error', engine_core.errors.DestinationWarning)",
            DestinationWarning,
        )

    def _title(self, destination: object) -> str:
        return self.titles.get(id(destination), type(destination).__name__)

    def _when(self) -> str:
        state = self._state() if self._state is not None else None
        if state is None:
            return ""
        return f" at batch {state.timestamp.batch} (epoch {state.timestamp.epoch})"
