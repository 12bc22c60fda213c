"""Audit mode: report each algorithm that writes what it does not declare, or does not restore what it changed."""

from __future__ import annotations

import functools
import importlib
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

from engine_core.algorithm import Algorithm, algorithm_metadata
from engine_core.callback import Callback
from engine_core.errors import ArgumentError, ArgumentTypeError, AuditWarning, did_you_mean
from engine_core.event import Event
from engine_core.logger import Logger
from engine_core.messages import warn
from engine_core.needs import WRITABLE
from engine_core.state import State
from engine_core.time import Time, TimeUnit

if TYPE_CHECKING:
    from .audit import Finding, Observer

__all__ = ["Audit"]


class Audit(Callback):
    """Watches what algorithms write and restore, by fingerprints of State before and after each `apply`.

    Each finding is an `AuditWarning`, once for each algorithm, kind, field and event; their number is logged as
    `audit/findings` at the end of `fit`. The audit changes nothing and draws no random number. It costs each `apply`
    about as much as reading all compared fields twice.

    Args:
        fields: the State fields that are compared, by default all that an algorithm may write; fewer cost less.
        interval: how often, in batches, such as `100ba`; what happens between batches is always compared.
        on_finding: `warn`, or `error` to raise each finding as an error.

    Attributes:
        findings: the first finding of each algorithm, kind, field and event.
        counts: how often there were findings, by algorithm, kind, field and event.
        not_declared: the names of algorithms that ran without declaring `writes`, and have not changed anything.

    Example:
        >>> Audit(fields=["batch", "loss"], interval="100ba").fields
        ('batch', 'loss')
    """

    every_rank = False

    def __init__(
        self,
        fields: Iterable[str] = WRITABLE,
        interval: Time | str = "1ba",
        on_finding: Literal["warn", "error"] = "warn",
    ) -> None:
        self.fields = _checked_fields(fields)
        self.interval = _checked_interval(interval)
        if on_finding not in ("warn", "error"):
            raise ArgumentError(f"the audit's on_finding is 'warn' or 'error', not {on_finding!r}")
        self.on_finding = on_finding
        self._begin()

    def init(self, state: State, logger: Logger) -> None:
        """Forget what was found in an earlier run."""
        self._begin()

    def fit_start(self, state: State, logger: Logger) -> None:
        """Judge the algorithms that had something to restore when an exception ended an earlier `fit`."""
        self._observer.close(state, starts_anew=True)

    def close(self, state: State, logger: Logger) -> None:
        """Judge the algorithms that had something to restore when an exception came; it is too late to raise."""
        self._is_closing = True
        try:
            self._observer.close(state)
        finally:
            self._is_closing = False

    def around_apply(self, algorithm: Algorithm, name: str, event: Event, state: State) -> AbstractContextManager[None]:
        """Return a context that compares State before and after an `apply`."""
        if algorithm_metadata(algorithm).writes is None:
            self._undeclaring[name] = None
        if self._is_due(event, state) or self._observer.awaits(algorithm, event):
            return self._observer.around(algorithm, name, event, state)
        return nullcontext()

    @property
    def not_declared(self) -> list[str]:
        """Return those that did not declare `writes`, and did not need to."""
        writers = {name for name, kind, _, _ in self.counts if kind == "undeclared_write"}
        return [name for name in self._undeclaring if name not in writers]

    def _begin(self) -> None:
        self.findings: list[Finding] = []
        self.counts: Counter[tuple[str, str, str, Event]] = Counter()
        self._undeclaring: dict[str, None] = {}
        self._observer: Observer = _observing().Observer(self._take, self.fields)
        self._is_closing = False

    def _is_due(self, event: Event, state: State) -> bool:
        batch, eval_batch = _observing().position_of(event, state)
        number = batch if eval_batch is None else eval_batch
        return event.canonical_name in _observing().BETWEEN_BATCHES or number % self.interval.value == 0

    def _take(self, finding: Finding) -> None:
        key = (finding.algorithm, finding.kind, finding.field, finding.event)
        self.counts[key] += 1
        if self.counts[key] == 1:
            self.findings.append(finding)
        if self.on_finding == "error" and not self._is_closing:
            raise AuditWarning(str(finding))
        if self.counts[key] == 1:
            warn(str(finding), AuditWarning)


def _settling(event: Event) -> Callable[[Audit, State, Logger], None]:
    def settle(self: Audit, state: State, logger: Logger) -> None:
        self._observer.settle(event, state)
        if event is Event.FIT_END and logger.destinations:
            logger.log_metrics({"audit/findings": self.counts.total()})

    settle.__doc__ = "Judge the algorithms that had something to restore here and did not run."
    return settle


for _event in Event:
    if _event.is_after_event:
        setattr(Audit, _event.value, _settling(_event))


@functools.cache
def _observing() -> Any:
    """Import what needs torch only when needed: listing or examining plugins does not."""
    return importlib.import_module(".audit", __package__)


def _checked_fields(fields: Any) -> tuple[str, ...]:
    if not isinstance(fields, Iterable):
        raise ArgumentTypeError(f"the audit's fields are a list of names, not {fields!r}{did_you_mean('', WRITABLE)}")
    given = (fields,) if isinstance(fields, str) else tuple(fields)
    for field in given:
        if field not in WRITABLE:
            raise ArgumentError(f"the audit can't compare {field!r}{did_you_mean(str(field), WRITABLE)}")
    if not given:
        raise ArgumentError(f"the audit has no fields to compare{did_you_mean('', WRITABLE)}")
    return given


def _checked_interval(interval: Time | str) -> Time:
    try:
        checked = Time(interval)
    except (ArgumentError, ArgumentTypeError) as error:
        raise type(error)(f"the audit's interval: {error}") from None
    if checked.unit is not TimeUnit.BATCH or checked.value < 1:
        raise ArgumentError(f"the audit's interval is a number of batches such as '100ba', not {str(checked)!r}")
    return checked
