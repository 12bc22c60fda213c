"""Whether an algorithm changes the loader's tensors in place, looked at in the first batches of a fit. No torch."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..errors import AuditWarning
from ..event import Event, events_between
from ..logger import Logger
from ..messages import join_words, warn
from ..passes import Member
from ..state import State
from .pipeline import Pipeline

BATCHES = 2
"""How many batches of a fit are looked at, so that the others cost nothing."""

_DURING = events_between(Event.AFTER_DATALOADER, Event.AFTER_TRAIN_BATCH)


class InPlace:
    """Compares the versions that tensors carry before and after each `apply`, and warns once for each algorithm."""

    def __init__(self) -> None:
        self._pipelines: list[Pipeline] = []
        self._held: dict[str, weakref.ref[Any]] = {}
        self._batch, self._end = -1, 0
        self._told: set[str] = set()

    def begin(self, state: State, pipelines: Iterable[Pipeline | None]) -> None:
        """Look at the next batches."""
        self._batch, self._end = -1, state.timestamp.batch + BATCHES
        self._pipelines = [pipeline for pipeline in pipelines if pipeline is not None and pipeline.event in _DURING]
        for pipeline in self._pipelines:
            pipeline.wrap_each(lambda member: _Looked(member, self))

    def versions(self, state: State) -> list[int | None]:
        """Return the versions of the loader's tensors, None for one that is gone; nothing after the last batch."""
        batch = state.timestamp.batch
        if batch >= self._end:
            self._held = {}
            for pipeline in self._pipelines:
                pipeline.wrap_each(None)
        elif batch != self._batch:  # the first apply of the batch: nothing else has put tensors into it
            self._batch, self._held = batch, {path: weakref.ref(t) for path, t in _tensors_in(state.batch, "")}
        return [getattr(ref(), "_version", None) for ref in self._held.values()]

    def compare(self, member: Member, event: Event, before: list[int | None], after: list[int | None]) -> None:
        """Warn if the algorithm changed one of them."""
        changed = [path for path, was, now in zip(self._held, before, after) if was != now is not None]  # noqa: B905
        if not changed or member.name in self._told:
            return
        self._told.add(member.name)
        warn(
            f"{member.title} changed the loader's tensors in place (batch{join_words(changed)}) at {event.name} of "
            f"batch {self._batch}, and the loader may give them again: put a new tensor into the batch, as "
            "state.batch_set_item(key, tensor) does",
            AuditWarning,
        )


class _Looked:
    """An algorithm that is looked at."""

    def __init__(self, member: Member, in_place: InPlace) -> None:
        self._member, self._in_place = member, in_place

    def apply(self, event: Event, state: State, logger: Logger) -> Any:
        """Apply the algorithm, and compare the loader's tensors."""
        before = self._in_place.versions(state)
        exit_code = self._member.algorithm.apply(event, state, logger)
        self._in_place.compare(self._member, event, before, self._in_place.versions(state))
        return exit_code


def _tensors_in(item: Any, path: str, around: frozenset[int] = frozenset()) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of a batch that have a version, each with its path.

    A view, such as a microbatch, shares the version of its base. What was moved to another device is not the loader's,
    and a tensor made in inference mode has no version. A batch may contain itself, as linked nodes do: `around` are the
    containers on the way.
    """
    if id(item) in around:
        return
    around |= {id(item)}
    if isinstance(item, Mapping):
        for key, value in item.items():
            yield from _tensors_in(value, f"{path}[{key!r}]", around)
    elif isinstance(item, (list, tuple)):
        for place, value in enumerate(item):
            yield from _tensors_in(value, f"{path}[{place}]", around)
    elif dataclasses.is_dataclass(item) and not isinstance(item, type):
        for field in dataclasses.fields(item):
            yield from _tensors_in(getattr(item, field.name, None), f"{path}.{field.name}", around)
    elif hasattr(type(item), "_version") and item.is_cpu and not item.is_inference():
        yield path, item if item._base is None else item._base  # noqa: SLF001  no other name for it
