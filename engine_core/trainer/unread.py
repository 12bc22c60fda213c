"""Items of a batch that nothing reads. It keeps silent wherever something may."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..algorithm import is_averaging
from ..callback import method_of
from ..engine import Engine
from ..errors import UnreadItemWarning
from ..event import Event
from ..messages import join_words, warn
from ..objective import Objective
from ..state import State

_BEFORE_BATCHES = {Event.INIT, Event.AFTER_LOAD, Event.FIT_START}


def warn_of_unread(state: State, engine: Engine) -> None:
    """Warn of each item of a batch of several that no one reads, with the line to write."""
    batch, unread = state.batch, _unread(state, engine)
    if not unread:
        return
    objective = state.objective
    model, loss = (_in_words(items) for items in (objective.inputs, objective.targets))
    what = f", a {_described(batch[unread[0]])}" if len(unread) == 1 else ""
    more, last = (*_places(objective.targets), unread[0]), len(batch) - 1
    warn(
        f"nothing reads {_in_words(tuple(unread))} of the batch{what}: the model gets {model}, and the loss {loss}. If "
        "the loss needs it, give Trainer(objective=engine_core.Objective(loss_fn, "
        f"targets={more!r})); if the last item is the target, Objective(loss_fn, inputs={tuple(range(last))!r}, "
        f"targets={last})",
        UnreadItemWarning,
    )


def _unread(state: State, engine: Engine) -> list[int]:
    """Return the places of a tuple or list that certainly nothing reads."""
    objective, batch, batches = state.objective, state.batch, state.batches
    if type(batch) not in (tuple, list) or type(objective) is not Objective or objective.loss_fn is None:
        return []
    if batches.samples or batches.count or batches.take or batches.tokens:  # functions, which get the whole batch
        return []
    read = [*_places(objective.inputs), *_places(objective.targets)]
    read += [str(path).partition(".")[0] for paths in (batches.shared, batches.per_row, batches.dim) for path in paths]
    for reader in _readers(engine):
        settings = getattr(reader, "__dict__", {})
        keys = [
            value
            for name, value in settings.items()
            if name.rpartition("_")[1:] == ("_", "key") and type(value) in (int, tuple)
        ]
        # It may read anything, or a function that it was given may.
        if not keys or not all(type(key) is int for key in keys) or any(map(callable, settings.values())):
            return []
        read += keys
    known = {place % len(batch) if type(place) is int else place for place in read}
    if "*" in known:
        return []
    # Strings, and lists of them, are there to be shown.
    arrays = [place for place, item in enumerate(batch) if hasattr(item, "shape")]
    return [place for place in arrays if not {place, str(place)} & known]


def _readers(engine: Engine) -> Iterator[Any]:
    """Yield what may read an item: what is called while there is a batch and neither averages weights nor is ours."""
    for member in engine.members:
        if set(member.events) - _BEFORE_BATCHES and not is_averaging(member.algorithm):
            yield member.algorithm
    for listener in (*engine.state.callbacks, *engine.logger.destinations):
        is_own = type(listener).__module__.partition(".")[0] == "engine_core"
        if not is_own and any(method_of(listener, event.value) is not None for event in {*Event} - _BEFORE_BATCHES):
            yield listener


def _places(items: Any) -> tuple[int | str, ...]:
    return items if isinstance(items, tuple) else (items,)


def _in_words(items: Any) -> str:
    places = [*map(repr, _places(items))]
    return f"item {places[0]}" if len(places) == 1 else f"items {join_words(places)}"


def _described(item: Any) -> str:
    return f"{type(item).__name__} of shape {tuple(item.shape)}"
