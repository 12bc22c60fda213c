"""What is logged, where to, and how a failing destination is handled. Knows no engine; formats nothing."""

from __future__ import annotations

import re
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from .errors import ArgumentError, ArgumentTypeError, DestinationWarning
from .event import Event
from .messages import cause_of, readable, table_in_html, warn
from .observed import ObservedList
from .state import State

__all__ = [
    "FILE_NAME",
    "HOW_TO_STOP",
    "MOST_FAILURES",
    "MOST_FILE_BYTES",
    "PATIENCE",
    "VALUES",
    "Destination",
    "Isolation",
    "Logger",
    "Trace",
    "Traces",
    "is_event",
]


PATIENCE = 3
"""After this many failures in a row of one method, the destination is disabled."""

MOST_FAILURES = 30
"""After this many failures in total, the destination is disabled, so that the warnings end."""

MOST_FILE_BYTES = 8 * 2**20
"""How large a logged file may be."""

FILE_NAME = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,200}\.(?:png|svg|json|txt)")
"""What the name of a logged file has to be."""

VALUES = "values"
"""The kind of the lines of `metrics.jsonl` that hold what was logged; the others are events of the run."""

HOW_TO_STOP = (
    "To stop instead: warnings.simplefilter('error', engine_core.errors.DestinationWarning), or "
    "PYTHONWARNINGS='error:logger destination' for a command"
)
"""Ends each DestinationWarning; the variable matches the words that all of them start with."""


def is_event(line: Mapping[str, Any]) -> bool:
    """Return whether a line of `metrics.jsonl` is an event; older versions gave values no kind, and maybe that name."""
    return isinstance(kind := line.get("kind"), str) and kind != VALUES


class Trace(NamedTuple):
    """One algorithm at one event.

    Args:
        name: the algorithm's unique name in its engine, such as `Freeze-2`.
        event: the event.
        exit_code: what `apply` returned.
        order: its place among the algorithms that ran, from 0.
        run: False only if an earlier algorithm raised, so this one was never reached.
    """

    name: str
    event: Event
    exit_code: int | None
    order: int
    run: bool


class Traces(dict[str, Trace]):
    """The traces of one event in running order, under `<algorithm_name>/<EVENT>`, as in `Freeze-2/INIT`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Traces({super().__repr__() if self else ''})"

    def _repr_html_(self) -> str:
        """Return a table for a notebook."""
        if not self:
            return "<p>nothing ran</p>"
        rows = [
            (t.order, t.name, t.event.name, readable(repr(t.exit_code)) if t.run else "not reached")
            for t in self.values()
        ]
        return table_in_html(("order", "algorithm", "event", "exit code"), rows)


class Destination(Protocol):
    """What a logger hands values to, as a `LoggerDestination` does."""

    def log_metrics(self, metrics: Mapping[str, Any], step: int, /) -> None:
        """Receive values by name."""

    def log_hyperparameters(self, hyperparameters: Mapping[str, Any], /) -> None:
        """Receive settings of the run."""

    def log_traces(self, traces: Traces, /) -> None:
        """Receive what the algorithms of an event did."""


class Logger:
    """Hands what is logged to each destination.

    If a destination raises, a DestinationWarning says so; if it keeps raising, it is disabled.

    Example:
        >>> Logger().log_metrics({"loss": 0.5}, step=3)
    """

    def __init__(self, destinations: Iterable[Destination] = ()) -> None:
        self.destinations: ObservedList[Destination] = ObservedList(destinations)
        self.isolation = Isolation()
        self._state: weakref.ref[State] | None = None
        self._explain: weakref.WeakMethod[Callable[[str], list[Any]]] | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "destinations":
            former, value = self.__dict__.get(name), ObservedList.of(value)
            if former is not None:
                former.hand_over(value)
        super().__setattr__(name, value)

    def follow(self, state: State, explain: Callable[[str], list[Any]] | None = None) -> None:
        """Take the default step from the clock of `state`, and the order from a method; an engine calls this."""
        self._state = weakref.ref(state)
        self._explain = None if explain is None else weakref.WeakMethod(explain)
        self.isolation.begin(self._state)

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Log values by name; `step` defaults to the number of complete batches."""
        if type(metrics) is not dict and not isinstance(metrics, Mapping):
            raise _not_by_name("log_metrics", metrics)
        if self.destinations:
            self._tell("log_metrics", metrics, self._step(step))

    def log_hyperparameters(self, hyperparameters: Mapping[str, Any]) -> None:
        """Log settings of the run."""
        if not isinstance(hyperparameters, Mapping):
            raise _not_by_name("log_hyperparameters", hyperparameters)
        self._tell("log_hyperparameters", hyperparameters)

    def log_file(self, name: str, content: bytes | str, step: int | None = None) -> None:
        """Log a picture, JSON or text; a destination without a method `log_file` is passed over.

        Args:
            name: of letters, digits, `.`, `_` and `-`, and ending in .png, .svg, .json or .txt.
            content: at most 8 MiB.
            step: default: the number of complete batches.
        """
        _check_file(name, content)
        takers = [each for each in self.destinations if hasattr(each, "log_file")]
        self._tell("log_file", name, content, self._step(step), to=takers)

    def log_traces(self, traces: Traces) -> None:
        """Log what the algorithms of an event did."""
        self._tell("log_traces", traces)

    def explain(self, event: str) -> list[Any]:
        """Return the order at an event with the reasons, as `Engine.explain` does; empty without an engine.

        Example:
            >>> Logger().explain("after_loss")
            []
        """
        explain = None if self._explain is None else self._explain()
        return [] if explain is None else explain(event)

    def _step(self, step: int | None) -> int:
        if step is not None:
            return step
        state = self._state() if self._state is not None else None
        return state.timestamp.batch if state is not None else 0

    def _tell(self, method: str, *values: Any, to: Iterable[Destination] | None = None) -> None:
        """Call a method of each destination that is not disabled; a missing method is a bug and raises."""
        for destination in self.destinations if to is None else to:
            self.isolation.call(destination, method, getattr(destination, method), *values)


def _check_file(name: Any, content: Any) -> None:
    if not isinstance(name, str) or not isinstance(content, (bytes, str)):
        raise ArgumentTypeError(f"log_file takes a name and bytes or text, not {name!r:.80} and {content!r:.80}")
    if not FILE_NAME.fullmatch(name):
        raise ArgumentError(
            f"log_file can't keep a file as {name!r:.80}: give it a name of letters, digits, '.', '_' and '-', with "
            "the ending .png, .svg, .json or .txt"
        )
    size = len(content.encode()) if isinstance(content, str) else len(content)
    if size > MOST_FILE_BYTES:
        raise ArgumentError(f"log_file: {name!r} has {size:,} bytes, and {MOST_FILE_BYTES:,} are the most: log less")


def _not_by_name(method: str, given: object) -> ArgumentTypeError:
    return ArgumentTypeError(f"{method} takes values by name, as in {{'loss': 0.5}}, not {given!r:.80}")


class _Trouble:
    """How often a destination has raised, in total and in a row for each method."""

    def __init__(self, destination: object) -> None:
        self.destination = destination  # held, so that no other object gets the id that is the key
        self.in_a_row: Counter[str] = Counter()
        self.in_all = 0
        self.is_disabled = False


class Isolation:
    """Counts the failures of a logger's destinations, and warns about each.

    Only an Exception is caught, so KeyboardInterrupt and SystemExit propagate. So does a DestinationWarning that the
    user's filter turned into an error.
    """

    def __init__(self) -> None:
        self.titles: Sequence[tuple[object, str]] = ()
        self.troubles: dict[int, _Trouble] = {}
        self._state: weakref.ref[State] | None = None

    def begin(self, state: weakref.ref[State]) -> None:
        """Forget past failures, since a new engine begins, and date new ones by the clock of `state`."""
        self.titles, self._state = (), state
        self.troubles.clear()

    def call(self, destination: object, method: str, function: Callable[..., object], *values: Any) -> None:
        """Call a method of a destination that is not disabled; what it raises is reported and stops no other."""
        trouble = self.troubles.get(id(destination))
        if trouble is not None and trouble.is_disabled:
            return
        try:
            function(*values)
        except DestinationWarning:
            raise
        except Exception as error:  # noqa: BLE001  any failure: the run is worth more than its log
            self.report(destination, method, error)
        else:
            if self.troubles:
                self.recover(destination, method)

    def recover(self, destination: object, method: str) -> None:
        """Restart a method's count of failures in a row after it succeeded."""
        trouble = self.troubles.get(id(destination))
        if trouble is not None:
            trouble.in_a_row.pop(method, None)

    def report(self, destination: object, method: str, error: Exception) -> None:
        """Count a failure and warn about it; disable the destination if it was one too many."""
        trouble = self.troubles.setdefault(id(destination), _Trouble(destination))
        if trouble.is_disabled:
            return
        trouble.in_all += 1
        trouble.in_a_row[method] += 1
        count = trouble.in_a_row[method]
        trouble.is_disabled |= count >= PATIENCE or trouble.in_all >= MOST_FAILURES
        if trouble.is_disabled:
            reason = f"{count} failures of {method} in a row" if count >= PATIENCE else f"{trouble.in_all} failures"
            consequence = f"training continues without it: disabled after {reason}"
        else:
            consequence = (
                f"training continues, and the other destinations still get it; failure {count} of {PATIENCE} in a row, "
                f"{trouble.in_all} of {MOST_FAILURES} in all, after which it is disabled"
            )
        warn(
            f"logger destination {self._title(destination)} failed in {method}{self._when()}: {cause_of(error)}; "
            f"{consequence}. {HOW_TO_STOP}",
            DestinationWarning,
            of_rank=True,
        )

    def _title(self, destination: object) -> str:
        return next((title for other, title in self.titles if other is destination), type(destination).__name__)

    def _when(self) -> str:
        state = self._state() if self._state is not None else None
        return "" if state is None else f" at batch {state.timestamp.batch} (epoch {state.timestamp.epoch})"
