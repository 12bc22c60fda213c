"""Callbacks that a loop adds: they warn in the first batches, then fall silent. No other file knows of them."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ..batch import is_record, items_of
from ..callback import Callback
from ..errors import AuditWarning
from ..event import Event, events_between
from ..logger import Logger
from ..messages import join_words, warn
from ..registry import Registry, display_name
from ..state import State

BATCHES = 2
"""How many batches of a fit are looked at."""
_DURING = events_between(Event.AFTER_DATALOADER, Event.AFTER_TRAIN_BATCH)


class InPlace(Callback):
    """Compares the versions that the loader's tensors carry around each `apply`, in the first batches of a fit.

    Where another callback watches each `apply`, it looks at none.
    """

    def __init__(self) -> None:
        self._held: dict[str, weakref.ref[Any]] = {}
        self._batch, self._end = -1, 0
        self._said: set[str] = set()

    def fit_start(self, state: State, logger: Logger) -> None:
        """Look at the next batches."""
        self._batch, self._end = -1, state.timestamp.batch + BATCHES

    def after_dataloader(self, state: State, logger: Logger) -> None:
        """Leave the run after the last of them."""
        if state.timestamp.batch >= self._end:
            self._leave(state)

    def _leave(self, state: State) -> None:
        state.callbacks[:] = [each for each in state.callbacks if each is not self]

    @contextmanager
    def around_apply(self, algorithm: Any, name: str, event: Event, state: State) -> Iterator[None]:
        """Compare the loader's tensors before and after an `apply`."""
        batch, watchers = state.timestamp.batch, [c for c in state.callbacks if hasattr(type(c), "around_apply")]
        if event not in _DURING or batch >= self._end or len(watchers) > 1 or state.profiler is not None:
            yield
            return
        if batch != self._batch:  # the first apply of the batch: nothing else has put tensors into it
            self._batch, self._held = batch, {path: weakref.ref(t) for path, t in _tensors_in(state.batch, "")}
        before = self._versions()
        yield
        pairs = zip(self._held, before, self._versions(), strict=True)
        changed = [path for path, was, now in pairs if was != now is not None]
        if changed and name not in self._said:
            self._said.add(name)
            warn(
                f"{display_name(name, Registry.scan().origin_of(algorithm))} changed the loader's tensors in place "
                f"(batch{join_words(changed)}) at {event.name} of batch {batch}, and the loader may give them again: "
                "put a new tensor into the batch, as state.batch_set_item(key, tensor) does",
                AuditWarning,
            )

    def _versions(self) -> list[int | None]:
        """Return the versions of the loader's tensors, None for one that is gone."""
        return [getattr(ref(), "_version", None) for ref in self._held.values()]


def _tensors_in(item: Any, path: str, around: frozenset[int] = frozenset()) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of a batch that have a version, each with its path.

    A view, such as a microbatch, shares the version of its base. What was moved to another device is not the loader's,
    and a tensor made in inference mode has no version. A batch may contain itself, as linked nodes do: `around` are the
    containers on the way.
    """
    if isinstance(item, (list, tuple)) or is_record(item):
        for key, value in items_of(item) if id(item) not in around else ():
            by_key = isinstance(item, Mapping) or type(key) is int
            yield from _tensors_in(value, f"{path}[{key!r}]" if by_key else f"{path}.{key}", around | {id(item)})
    elif hasattr(type(item), "_version") and item.is_cpu and not item.is_inference():
        yield path, item if item._base is None else item._base  # noqa: SLF001  no other name for it
