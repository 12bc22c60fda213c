"""Check what algorithms promise about State, by fingerprints around each apply. Knows no callback."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, NamedTuple

from engine_core.algorithm import Algorithm, algorithm_metadata
from engine_core.event import Event
from engine_core.messages import join_words
from engine_core.needs import WRITABLE
from engine_core.registry import Origin, Registry, display_name
from engine_core.state import State

from .fingerprint import Digests, changed_leaves, fingerprint_state
from .loader_tensors import Owners

Kind = Literal["undeclared_write", "not_restored", "in_place"]

BETWEEN_BATCHES = ("init", "load", "fit", "epoch", "epoch_checkpoint", "eval")
"""The canonical names of events at which no batch is being processed."""

# The second half never comes when the loader is exhausted, or training ends in mid-epoch.
_MAY_STAY_ALONE = (Event.BEFORE_DATALOADER, Event.EPOCH_START)
_COUNTED_ALREADY = (Event.BATCH_END, Event.BATCH_CHECKPOINT, Event.EVAL_BATCH_END)


@dataclass(frozen=True)
class Finding:
    """A promise that an algorithm broke; its `str` says which one, what, where, and what to do.

    Args:
        kind: `undeclared_write`: it changed a field that `writes` does not list, or has no `writes`. `not_restored`: it
            did not put back at the second half of a pair what it had changed at the first. `in_place`: it changed the
            loader's own tensors, or the container that holds them.
        algorithm: its unique name in the engine.
        origin: what ships it, None for the user's own.
        leaves: what changed in the field, as the paths of `fingerprint`.
        event: where it was found; for `not_restored` the second half of the pair.
        ran: did the algorithm run at `event`? If not, `match` was false there.
        writes: what its metadata declares, None for nothing.
        batch: the current batch, or between batches how many are complete; both count from 0.
        eval_batch: the same for evaluation, at its events.
        repeat: how often it had run at the event in this batch before, which is the microbatch's number.
        broke_off: did what lies between the two halves never finish, as after an exception?
    """

    kind: Kind
    algorithm: str
    origin: Origin | None
    field: str
    leaves: tuple[str, ...]
    event: Event
    ran: bool
    writes: tuple[str, ...] | None
    batch: int
    eval_batch: int | None
    repeat: int
    broke_off: bool = False

    def __str__(self) -> str:
        named = [leaf for leaf in self.leaves if leaf]
        leaves = f" ({join_words(named)})" if named else ""
        changed = f"{display_name(self.algorithm, self.origin)} changed {self.field}{leaves}"
        first = self.event.partner
        if self.kind == "undeclared_write":
            declared = (*(self.writes or ()), self.field)
            return f"{changed} {self.where} without declaring it: don't change it, or declare writes={declared!r}"
        if self.kind == "in_place":
            return (
                f"{changed} {self.where} in place, and the loader may give the same object again: "
                "put a new tensor into the batch, as state.batch_set_item(key, tensor) does"
            )
        assert first is not None
        if self.ran:
            return f"{changed} at {first.name} and did not restore it {self.where}: put back exactly what was there"
        lost = f"{changed} at {first.name} and did not run {self.where} to restore it"
        if self.broke_off:
            return (
                f"{lost} after something between the two had failed: match must be true at both events then too, and a "
                "step of your own loop must run inside engine.restoring()"
            )
        return f"{lost}: match must be true at both events"

    @property
    def where(self) -> str:
        """Event and batch, as in `at BEFORE_LOSS of batch 3`."""
        place = f"at {self.event.name}"
        if self.event.canonical_name in BETWEEN_BATCHES:
            return f"{place} after {self.batch} batches"
        if self.eval_batch is not None:
            return f"{place} of evaluation batch {self.eval_batch} after {self.batch} batches"
        return f"{place} of batch {self.batch}" + (f", microbatch {self.repeat}" if self.repeat else "")


class Observer:
    """Compares State before and after each `apply`, and reports each broken promise.

    Pairs are judged if metadata lists both events. What an algorithm changed at the
    first half must be restored, except leaves that something else has changed since. An `apply` that raises is not
    judged.

    Args:
        on_finding: called with each finding; what it raises propagates.
        fields: the State fields that are compared.
    """

    def __init__(self, on_finding: Callable[[Finding], None], fields: Iterable[str] = WRITABLE) -> None:
        self._on_finding = on_finding
        self._fields = tuple(fields)
        self._registry = Registry.scan()
        self._opened: dict[tuple[int, Event], _Opened] = {}
        self._runs: dict[tuple[int, Event], tuple[tuple[int, int], int]] = {}
        self._owners = Owners()

    @contextmanager
    def around(self, algorithm: Algorithm, name: str, event: Event, state: State) -> Iterator[None]:
        """Surround an `apply` with this."""
        subject = _Subject(algorithm, name, event, self._repeat(algorithm, event, state), position_of(event, state))
        # One that was left open is judged before this apply, which may put a half of its own in its place.
        self._judge_left(state, [(id(algorithm), event)])
        opened = self._opened.pop((id(algorithm), _first_half(event)), None)
        before, held = fingerprint_state(state, self._fields), self._owners.look(state.batch)
        yield  # without try: an apply that raises is not judged, and its pair is already popped
        after = fingerprint_state(state, self._fields)
        changed = {field: leaves for field in before if (leaves := changed_leaves(before[field], after[field]))}
        for field, leaves in changed.items():
            if field not in algorithm_metadata(subject.algorithm).written_fields:
                self._tell("undeclared_write", subject, field, leaves)
        if "batch" in before and (leaves := held.changed_in_place(state.batch, before["batch"], after["batch"])):
            self._tell("in_place", subject, "batch", leaves)
        # After the comparison, for which what this apply put into the batch is not yet the algorithm's own.
        self._owners.learn(held, state.batch, restores=opened is not None)
        if event.is_before_event and changed and event.partner in (algorithm_metadata(algorithm).events or ()):
            digests = {
                field: {leaf: (before[field].get(leaf), after[field].get(leaf)) for leaf in leaves}
                for field, leaves in changed.items()
            }
            self._opened[id(algorithm), event] = _Opened(subject, digests)
        if opened is not None and event.is_after_event:
            for field, leaves in opened.not_restored(before, after):
                self._tell("not_restored", subject, field, leaves)

    def awaits(self, algorithm: Algorithm, event: Event) -> bool:
        """Does the algorithm have something to restore at `event`?"""
        return event.is_after_event and (id(algorithm), event.partner) in self._opened

    def settle(self, event: Event, state: State) -> None:
        """Judge algorithms that had something to restore at `event`, which is over, but did not run."""
        if event.is_after_event:
            self._judge([key for key in self._opened if key[1] is event.partner], state)

    def close(self, state: State, *, starts_anew: bool = False) -> None:
        """Judge what was never restored because an exception or the end of training came first.

        Args:
            starts_anew: is this a FIT_START, whose second half is still to come?
        """
        self._judge_left(state, [key for key in self._opened if not (starts_anew and key[1] is Event.FIT_START)])

    def _judge_left(self, state: State, keys: Iterable[tuple[int, Event]]) -> None:
        """Judge those first halves that were never followed by the second."""
        self._judge([k for k in keys if k in self._opened and k[1] not in _MAY_STAY_ALONE], state, broke_off=True)

    def _judge(self, keys: Iterable[tuple[int, Event]], state: State, *, broke_off: bool = False) -> None:
        for key in keys:
            opened = self._opened.pop(key)
            subject = opened.subject.at_partner(state, broke_off=broke_off)
            now = fingerprint_state(state, opened.changes)
            for field, leaves in opened.not_restored(now, now):
                self._tell("not_restored", subject, field, leaves)

    def _repeat(self, algorithm: Algorithm, event: Event, state: State) -> int:
        """Count how often the algorithm ran at the event in this batch before."""
        now = (state.timestamp.batch, state.eval_timestamp.batch)
        then, repeat = self._runs.get((id(algorithm), event), (None, 0))
        repeat = repeat + 1 if then == now else 0
        self._runs[id(algorithm), event] = now, repeat
        return repeat

    def _tell(self, kind: Kind, subject: _Subject, field: str, leaves: tuple[str, ...]) -> None:
        origin = self._registry.origin_of(subject.algorithm)
        where = (subject.event, subject.ran, subject.writes, *subject.position, subject.repeat, subject.broke_off)
        self._on_finding(Finding(kind, subject.name, origin, field, leaves, *where))


class _Subject(NamedTuple):
    """An algorithm at an event."""

    algorithm: Algorithm
    name: str
    event: Event
    repeat: int
    position: tuple[int, int | None]
    ran: bool = True
    broke_off: bool = False

    @property
    def writes(self) -> tuple[str, ...] | None:
        return algorithm_metadata(self.algorithm).writes

    def at_partner(self, state: State, *, broke_off: bool) -> _Subject:
        """Return it at the second half, where it did not run; a pair that broke off did so in the first's batch."""
        assert self.event.partner is not None
        position = self.position if broke_off else position_of(self.event.partner, state)
        return self._replace(event=self.event.partner, position=position, ran=False, broke_off=broke_off)


class _Opened(NamedTuple):
    """What an algorithm changed at the first half of a pair: for each leaf the digests before and after."""

    subject: _Subject
    changes: Mapping[str, Mapping[str, tuple[str | None, str | None]]]

    def not_restored(
        self, found: Mapping[str, Digests], now: Mapping[str, Digests]
    ) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield the leaves by field that were `found` as the algorithm left them, but are not restored `now`."""
        for field, digests in self.changes.items():
            leaves = tuple(
                leaf
                for leaf, (original, made) in digests.items()
                if found[field].get(leaf) == made and now[field].get(leaf) != original
            )
            if leaves:
                yield field, leaves


def _first_half(event: Event) -> Event:
    return event.partner if event.is_after_event and event.partner is not None else event


def position_of(event: Event, state: State) -> tuple[int, int | None]:
    """Return the current batch, and at evaluation events the evaluation batch; both count from 0."""
    counted = event in _COUNTED_ALREADY
    if event.is_eval:
        return state.timestamp.batch, max(0, state.eval_timestamp.batch - counted)
    return max(0, state.timestamp.batch - counted), None
