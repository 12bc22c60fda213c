"""What an engine warns about: writers in no decided order, names that match nothing, algorithms that never run."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence

from ..errors import IdleAlgorithmWarning, OrderWarning, UnorderedWritersWarning, did_you_mean
from ..event import Event, events_between
from ..messages import enumerated, warn
from ..metadata import ORDERING
from ..passes import Member, PassList, declared_edges, table_of
from ..state import State
from .combination import conflicting, meant_by

Pair = tuple[Member, Member]
Doubt = tuple[str, type[Warning]]
"""A warning and its category."""

_SHOWN = 3  # events in a message; two algorithms that list no events share all of them


def _during(*spans: tuple[Event, Event]) -> frozenset[Event]:
    return frozenset(event for span in spans for event in events_between(*span))


_WRITTEN_AT: Mapping[str, frozenset[Event]] = {
    "batch": _during((Event.AFTER_DATALOADER, Event.BATCH_END), (Event.EVAL_BATCH_START, Event.EVAL_BATCH_END)),
    "outputs": _during((Event.AFTER_FORWARD, Event.BATCH_END), (Event.EVAL_AFTER_FORWARD, Event.EVAL_BATCH_END)),
    "loss": _during((Event.AFTER_LOSS, Event.BATCH_END), (Event.EVAL_BATCH_END, Event.EVAL_BATCH_END)),
    "metrics": frozenset({Event.BATCH_CHECKPOINT, Event.EPOCH_CHECKPOINT, Event.FIT_END, Event.EVAL_END}),
}
"""When there is something to write in a field; model, optimizers, schedulers and loss_fn are there all the time.

Metadata lists fields and events, but not which field at which event, so the engine has to know that here.
"""


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
    registered = [member.registered for member in members]
    for active in passes.active if members else ():
        for event, names in table_of(active.function).items():
            for name in names:
                if not any(member.is_called(name) for member in members):
                    message = f"explicit_order names {name!r} at {event.name}, but no algorithm here has that name"
                    yield f"{message}{did_you_mean(name, registered)}", OrderWarning


def _unordered_writers(members: Sequence[Member], passes: PassList) -> Iterator[Doubt]:
    """Yield the pairs that write the same field at an event in an order that only the list decides.

    Not those that can't run together, and not two of one class: they share a name, so nothing could order them.
    """
    writes = {m.name: frozenset(m.metadata.writes or ()) for m in members}
    apart = conflicting(members)
    both = {
        pair: shared
        for pair in itertools.combinations([m for m in members if writes[m.name]], 2)
        if (shared := writes[pair[0].name] & writes[pair[1].name])
        and type(pair[0].algorithm) is not type(pair[1].algorithm)
        and frozenset((pair[0].name, pair[1].name)) not in apart
    }
    clashes: dict[Pair, dict[Event, tuple[str, list[str]]]] = {}
    for event in Event if both else ():
        here = {}
        for pair, shared in both.items():
            fields = [field for field in shared if event in _WRITTEN_AT.get(field, Event)]
            if fields and event in pair[0].events and event in pair[1].events:
                here[pair] = " and ".join(sorted(fields))
        for pair, now in _open_pairs([*here], [m for m in members if event in m.events], passes, event):
            clashes.setdefault(pair, {})[event] = here[pair], now
    for pair, found in clashes.items():
        yield _clash(pair, found), UnorderedWritersWarning


def _clash(pair: Pair, found: Mapping[Event, tuple[str, list[str]]]) -> str:
    """Return the warning for a pair, with the remedy; `found` has the fields and the current order at each event."""
    events_by_fields: dict[str, list[str]] = {}
    for event, (fields, _) in found.items():
        events_by_fields.setdefault(fields, []).append(event.name)
    what = ", and ".join(f"{fields} at {enumerated(events)}" for fields, events in events_by_fields.items())
    table = [f"{event.value!r}: {names}" for event, (_, names) in found.items()]
    shown = ", ".join(table if len(table) <= _SHOWN else [*table[:_SHOWN], "..."])
    everywhere = [member.title for member in pair if member.metadata.events is None]
    return (
        f"{pair[0].title} and {pair[1].title} both write {what}, and only their positions in the list "
        "decide which runs first: declare before, after, around or within in the metadata of one, or set the order "
        f"with explicit_order({{{shown}}}), in a config with `order:`"
        + "".join(f"; {title} lists no events, which counts as all of them" for title in everywhere)
    )


def _open_pairs(
    pairs: Sequence[Pair], present: Sequence[Member], passes: PassList, event: Event
) -> Iterator[tuple[Pair, list[str]]]:
    """Yield the pairs whose order depends on the list, with the registered names in their current order.

    A pair is settled by declarations, maybe through others, or by passes that put it in the same order for the list and
    for the reversed list. That trial leaves out the declared order, where a third algorithm can drag one of the two
    along, which settles nothing about them.
    """
    behind = _behind(present, event) if pairs else {}
    undeclared = [(a, b) for a, b in pairs if b.name not in behind[a.name] and a.name not in behind[b.name]]
    if not undeclared:
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a pass's warnings belong to the run
            orders = [
                passes.arrange(present, event),
                passes.arrange(present, event, declared=False),
                passes.arrange(present[::-1], event, declared=False),
            ]
    except Exception:  # noqa: BLE001  a user's pass may raise anything; the run will show it
        return
    now, ahead, back = ({name: place for place, name in enumerate(order)} for order in orders)
    there = now.keys() & ahead.keys() & back.keys()
    for pair in undeclared:
        one, other = pair[0].name, pair[1].name
        if {one, other} <= there and (ahead[one] < ahead[other]) != (back[one] < back[other]):
            first, second = pair if now[one] < now[other] else pair[::-1]
            yield pair, [first.registered, second.registered]


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


def warn_of_idle(members: Sequence[Member], state: State) -> None:
    """Warn of algorithms that were asked in a training that is over and never matched, each once."""
    for member in members:
        asked = {event.name: times for event, times in member.asked.items() if times}
        if not member.is_idle or not asked:
            continue
        try:
            if hasattr(member.algorithm, "may_rest") and member.algorithm.may_rest(state):
                continue
        except BaseException as error:
            member.blame(error, "may_rest", Event.FIT_END)
            raise
        member.is_idle = False
        times = sum(asked.values())
        warn(
            f"{member.title} was asked {times} {'time' if times == 1 else 'times'} at {enumerated([*asked])} "
            "and never matched; if that is as it should be, let its may_rest return True",
            IdleAlgorithmWarning,
        )
