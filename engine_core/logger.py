"""What is logged and where it goes. Knows no engine; formats nothing."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from .errors import DestinationWarning
from .isolation import HasClock, Isolation
from .observed_list import ObservedList
from .trace import Traces

__all__ = ["Destination", "Logger"]


class Destination(Protocol):
    """What a logger hands values to, as a `LoggerDestination` does."""

    def log_metrics(self, metrics: Mapping[str, Any], step: int, /) -> None:
        """Receive values by name."""

    def log_hyperparameters(self, hyperparameters: Mapping[str, Any], /) -> None:
        """Receive settings of the run."""

    def log_traces(self, traces: Traces, /) -> None:
        """Receive what the algorithms of an event did."""


class Logger:
    """Hands what is logged to each destination, and does nothing where there is none.

    A destination that raises is told of by a DestinationWarning, and disabled when it goes on doing so.

    Example:
        >>> Logger().log_metrics({"loss": 0.5}, step=3)
    """

    def __init__(self, destinations: Iterable[Destination] = ()) -> None:
        self.destinations: ObservedList[Destination] = ObservedList(destinations)
        self.isolation = Isolation()
        self._state: weakref.ref[HasClock] | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "destinations":
            former, value = self.__dict__.get(name), ObservedList.of(value)
            if former is not None:
                former.hand_over(value)
        super().__setattr__(name, value)

    def follow(self, state: HasClock) -> None:
        """Take the step of what is logged without one from the clock of `state`; an engine calls this."""
        self._state = weakref.ref(state)
        self.isolation.begin(self._state)

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Log values by name; `step` defaults to the number of complete batches."""
        if not self.destinations:
            return
        if step is None:
            state = self._state() if self._state is not None else None
            step = state.timestamp.batch if state is not None else 0
        isolation = self.isolation
        troubles = isolation.troubles
        for destination in self.destinations:  # as in `_tell`, written out for what is called most
            if troubles and isolation.is_disabled(destination):
                continue
            log = destination.log_metrics
            try:
                log(metrics, step)
            except DestinationWarning:
                raise
            except Exception as error:  # noqa: BLE001  whatever it is, the run is worth more than its log
                isolation.report(destination, "log_metrics", error)
            else:
                if troubles:
                    isolation.recover(destination, "log_metrics")

    def log_hyperparameters(self, hyperparameters: Mapping[str, Any]) -> None:
        """Log settings of the run."""
        self._tell("log_hyperparameters", hyperparameters)

    def log_traces(self, traces: Traces) -> None:
        """Log what the algorithms of an event did."""
        self._tell("log_traces", traces)

    def _tell(self, method: str, *values: Any) -> None:
        """Call a method of each destination that is not disabled; one that lacks it is a mistake of the program."""
        isolation = self.isolation
        troubles = isolation.troubles
        for destination in self.destinations:
            if troubles and isolation.is_disabled(destination):
                continue
            call = getattr(destination, method)
            try:
                call(*values)
            except DestinationWarning:
                raise
            except Exception as error:  # noqa: BLE001  as above
                isolation.report(destination, method, error)
            else:
                if troubles:
                    isolation.recover(destination, method)
