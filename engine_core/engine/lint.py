"""What an engine warns about: writers in no decided order, names that match nothing, algorithms that never run."""

from __future__ import annotations

import inspect
import itertools
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import CodeType
from typing import Any, TypeAlias

from ..errors import (
    EventNameWarning,
    IdleAlgorithmWarning,
    OrderWarning,
    UnorderedWritersWarning,
    did_you_mean,
    nearest,
)
from ..event import Event
from ..messages import enumerated, warn
from ..metadata import ORDERING
from ..passes import Member, PassList, declared_edges, table_of
from ..state import State
from .combination import conflicting, meant_by

Pair = tuple[Member, Member]

_SHOWN = 3  # events in a message; two algorithms that list no events share all of them

_EVENTS = tuple(Event)


def _during(*spans: tuple[Event, Event]) -> frozenset[Event]:
    """Return the events from the first to the last of each span, as they come in a step."""
    return frozenset(e for a, z in spans for e in _EVENTS[_EVENTS.index(a) : _EVENTS.index(z) + 1])


_WRITTEN_AT: Mapping[str, frozenset[Event]] = {
    "batch": _during((Event.AFTER_DATALOADER, Event.BATCH_END), (Event.EVAL_BATCH_START, Event.EVAL_BATCH_END)),
    "outputs": _during((Event.AFTER_FORWARD, Event.BATCH_END), (Event.EVAL_AFTER_FORWARD, Event.EVAL_BATCH_END)),
    "loss": _during((Event.AFTER_LOSS, Event.BATCH_END), (Event.EVAL_BATCH_END, Event.EVAL_BATCH_END)),
    "metrics": frozenset({Event.BATCH_CHECKPOINT, Event.EPOCH_CHECKPOINT, Event.FIT_END, Event.EVAL_END}),
}
"""When there is something to write in a field; model, optimizers, schedulers and loss_fn are there all the time.

Metadata lists fields and events, but not which field at which event, so the engine has to know that here.
"""


Doubt: TypeAlias = tuple[str, type[Warning]]
"""A warning and its category."""


def warn_of(members: Sequence[Member], passes: PassList) -> None:
    """Warn about what is doubtful in the order, each thing once per engine."""
    for message, category in doubts_about(members, passes):
        passes.warn_once(message, category)


def doubts_about(members: Sequence[Member], passes: PassList) -> list[Doubt]:
    """Return what is doubtful in the order of these algorithms."""
    return [*_unknown_names(members, passes), *_missed_names(members, passes), *_unordered_writers(members, passes)]


def _missed_names(members: Sequence[Member], passes: PassList) -> Iterator[Doubt]:
    """Yield references that match no algorithm here, but nearly do; naming an absent algorithm is fine."""
    for member in members:
        for relation in (*ORDERING, "conflicts"):
            for reference in getattr(member.metadata, relation):
                if meant := meant_by(reference, member, members, passes.registry):
                    what = f"{relation}={reference!r} in the metadata of {member.title} has no effect"
                    yield f"{what}: no algorithm here has that name; did you mean {meant!r}?", OrderWarning


def _unknown_names(members: Sequence[Member], passes: PassList) -> Iterator[Doubt]:
    """Yield names in `explicit_order` tables that match no algorithm; nothing can be said if there are none."""
    tables = [table_of(active.function) for active in passes.active]
    if not members or not any(tables):
        return
    for table in tables:
        for event, names in table.items():
            for name in names:
                if not any(member.is_called(name) for member in members):
                    hint = did_you_mean(name, [member.registered for member in members])
                    message = f"explicit_order names {name!r} at {event.name}, but no algorithm here has that name"
                    yield f"{message}{hint}", OrderWarning


def _unordered_writers(members: Sequence[Member], passes: PassList) -> Iterator[Doubt]:
    """Yield the pairs that write the same field at an event in an order that only the list decides."""
    declared = {m.name: frozenset(m.metadata.writes or ()) for m in members}
    writers = [m for m in members if declared[m.name]]
    if len(writers) < 2:
        return
    apart = conflicting(members)
    events_of: dict[Pair, dict[Event, list[str]]] = {}
    for event in Event:
        here = [m for m in writers if event in m.events]
        pairs = [pair for pair in itertools.combinations(here, 2) if _may_clash(pair, declared, event)]
        if pairs:
            present = [member for member in members if event in member.events]
            for pair, now in _open_pairs(pairs, present, passes, event):
                events_of.setdefault(pair, {})[event] = now
    for pair, orders in events_of.items():
        if frozenset((pair[0].name, pair[1].name)) not in apart:
            yield _clash(pair, orders, declared), UnorderedWritersWarning


def _clash(pair: Pair, orders: Mapping[Event, list[str]], declared: Mapping[str, frozenset[str]]) -> str:
    """Return the warning for a pair, with the remedy; `orders` has the current order at each event."""
    events_by_fields: dict[str, list[str]] = {}
    for event in orders:
        events_by_fields.setdefault(" and ".join(sorted(_shared(pair, declared, event))), []).append(event.name)
    what = ", and ".join(f"{fields} at {enumerated(events)}" for fields, events in events_by_fields.items())
    table = [f"{event.value!r}: {names}" for event, names in orders.items()]
    shown = ", ".join(table if len(table) <= _SHOWN else [*table[:_SHOWN], "..."])
    everywhere = [member.title for member in pair if member.metadata.events is None]
    return (
        f"{pair[0].title} and {pair[1].title} both write {what}, and only their positions in the list "
        "decide which runs first: declare before, after, around or within in the metadata of one, or set the order "
        f"with explicit_order({{{shown}}}), in a config with `order:`"
        + "".join(f"; {title} lists no events, which counts as all of them" for title in everywhere)
    )


def _shared(pair: Pair, declared: Mapping[str, frozenset[str]], event: Event) -> list[str]:
    """Return the fields that both declare they write, and that can be written at the event."""
    both = declared[pair[0].name] & declared[pair[1].name]
    return [field for field in both if field not in _WRITTEN_AT or event in _WRITTEN_AT[field]]


def _may_clash(pair: Pair, declared: Mapping[str, frozenset[str]], event: Event) -> bool:
    """Do they write the same field? Two of one class share a name: no declaration or table can order them."""
    first, second = pair
    return type(first.algorithm) is not type(second.algorithm) and bool(_shared(pair, declared, event))


def _open_pairs(
    pairs: Sequence[Pair], present: Sequence[Member], passes: PassList, event: Event
) -> Iterator[tuple[Pair, list[str]]]:
    """Yield the pairs whose order depends on the list, with the registered names in their current order.

    A pair is settled by declarations, maybe through others, or by passes that put it in the same order for the list and
    for the reversed list. That trial leaves out the declared order, where a third algorithm can drag one of the two
    along, which settles nothing about them.
    """
    behind = _behind(present, event)
    undeclared = [(a, b) for a, b in pairs if b.name not in behind[a.name] and a.name not in behind[b.name]]
    if not undeclared:
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a pass's warnings belong to the run
            now = _places(passes.arrange(present, event))
            ahead = _places(passes.arrange(present, event, declared=False))
            back = _places(passes.arrange(present[::-1], event, declared=False))
    except Exception:  # noqa: BLE001  a user's pass may raise anything; the run will show it
        return
    there = now.keys() & ahead.keys() & back.keys()
    for pair in undeclared:
        one, other = pair[0].name, pair[1].name
        if {one, other} <= there and (ahead[one] < ahead[other]) != (back[one] < back[other]):
            first, second = pair if now[one] < now[other] else pair[::-1]
            yield pair, [first.registered, second.registered]


def _places(names: Sequence[str]) -> dict[str, int]:
    return {name: place for place, name in enumerate(names)}


def _behind(present: Sequence[Member], event: Event) -> dict[str, set[str]]:
    """Return for each name those that declarations put after it, maybe through others."""
    behind: dict[str, set[str]] = {member.name: set() for member in present}
    for edge in declared_edges(present, event):
        behind[edge.first].add(edge.second)
    for between, beyond in behind.items():  # Warshall 1962: paths through each in turn
        for later in behind.values() if beyond else ():
            if between in later:
                later.update(beyond)
    return behind


_NAMES = {name for event in Event for name in (event.value, event.canonical_name)}
_LIKE_A_NAME = re.compile("[a-z_]{4,}")  # shorter ones, such as "int", are like "init" by chance


def warn_of_misspelt_events(classes: Iterable[type]) -> None:
    """Warn, at the line of the method, of names that are nearly an event's."""
    for cls in classes:
        for function, message in misspelt_events(cls):
            seen = function.__globals__.setdefault("__warningregistry__", {})
            line = function.__code__.co_firstlineno
            file, module = function.__code__.co_filename, function.__module__
            warnings.warn_explicit(message, EventNameWarning, file, line, module, seen)


def misspelt_events(cls: type) -> Iterator[tuple[Any, str]]:
    """Yield each method of an algorithm or a callback that names nearly an event, and what is wrong with it.

    Looked up in the constants of the code: an `Event.__eq__` would make all comparisons six times slower.
    """
    for name in ("match", "apply", *(event.value for event in Event)):
        function = _function_of(cls, name)
        if function is not None:
            for text, near in _nearly_events(function.__code__):
                if not _is_one_slip(text, near):
                    continue  # "batch_mean" and "finite" are names of their own
                what = f"{cls.__name__}.{name} mentions {text!r}, and no event has that name"
                yield function, f"{what}; did you mean {near!r}?"


def warn_of_idle(members: Sequence[Member], state: State) -> None:
    """Warn of algorithms that were asked in a training that is over and never matched, each once."""
    for member in members:
        asked = {event.name: times for event, times in member.asked.items() if times}
        if not member.is_idle or not asked or _may_rest(member, state):
            continue
        member.is_idle = False
        times = sum(asked.values())
        warn(
            f"{member.title} was asked {times} {'time' if times == 1 else 'times'} at {enumerated([*asked])} "
            f"and never matched{_reason(member.algorithm)}; if that is as it should be, let its may_rest return True",
            IdleAlgorithmWarning,
        )


def _may_rest(member: Member, state: State) -> bool:
    try:
        return hasattr(member.algorithm, "may_rest") and bool(member.algorithm.may_rest(state))
    except BaseException as error:
        member.blame(error, "may_rest", Event.FIT_END)
        raise


def _reason(algorithm: Any) -> str:
    """Return why an algorithm probably never matches, from what its `match` and its attributes mention."""
    function = _function_of(type(algorithm), "match")
    if function is None:
        return ""
    code = function.__code__
    if code.co_varnames[1:3] == ("state", "event"):
        return ": its match takes (state, event), and is called with (event, state)"
    elsewhere = tuple(function.__globals__.get(name) for name in code.co_names)
    found = next(_nearly_events((code, elsewhere, tuple(getattr(algorithm, "__dict__", {}).values()))), None)
    return "" if found is None else f": it mentions {found[0]!r}; did you mean {found[1]!r}?"


def _function_of(cls: type, name: str) -> Any:
    """Return the function behind a method, or None if it is not one of Python."""
    method = getattr(cls, name, None)
    function = inspect.unwrap(method) if callable(method) else None
    return function if inspect.isfunction(function) else None


def _nearly_events(constant: Any) -> Iterator[tuple[str, str]]:
    """Yield the strings in a constant, or in those of code, that name no event but nearly one, with that event."""
    for text in dict.fromkeys(_strings_in(constant)):
        if _LIKE_A_NAME.fullmatch(text) and text not in _NAMES:
            near = nearest(text, [event.value for event in Event], cutoff=0.8)
            if near is not None:
                yield text, near


def _is_one_slip(text: str, name: str) -> bool:
    """Do they differ by one character, added, left out or another one, or by two that changed places?"""
    rests = [(text[i:], name[i:]) for i in range(len(name) + 1) if text[:i] == name[:i]]
    return any(t[1:] in (n, n[1:]) or t in (n[1:], f"{n[1:2]}{n[:1]}{n[2:]}") for t, n in rests)


def _strings_in(constant: Any) -> Iterator[str]:
    if isinstance(constant, str):
        yield constant
    elif isinstance(constant, CodeType):
        yield from _strings_in(constant.co_consts)
    elif isinstance(constant, (tuple, set, frozenset)):
        for item in constant:
            yield from _strings_in(item)
