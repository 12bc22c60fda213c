"""Does a pass arrange every list of algorithms as a pass has to? Needs no torch."""

from __future__ import annotations

import itertools
import random
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from engine_core.algorithm import Algorithm
from engine_core.event import Event
from engine_core.logger import Logger
from engine_core.messages import join_words
from engine_core.metadata import AlgorithmMetadata, PassMetadata
from engine_core.passes import metadata_of
from engine_core.registry import Registry
from engine_core.state import State

from ..declared import invalid
from ..generators import generator_states, moved_since
from ..kit import Fault, PassKit
from .timing import least_seconds, patiently

PURE_S, IMPURE_S = 1e-3, 50e-6
_CALLS = 4
"""How often a pass is called with the same list, to see whether it returns the same."""
_HOLDERS = (dict, list, tuple, set)


class Unknown(Algorithm):
    """An algorithm that no pass can know."""

    def match(self, event: Event, state: State) -> bool:
        """It is never asked."""
        return False

    def apply(self, event: Event, state: State, logger: Logger) -> None:
        """It never runs."""


class AnotherUnknown(Unknown):
    """Another one, which declares something."""

    metadata = AlgorithmMetadata(tags=("unknown",), writes=())


def test_metadata(kit: PassKit) -> Fault | None:
    """Validate the metadata strictly and compare its name."""
    function: Any = kit.make_pass()
    metadata = getattr(function, "metadata", None)
    if not isinstance(metadata, PassMetadata):
        return Fault(f"its metadata is {metadata!r}")
    if problem := invalid(metadata):
        return Fault(f"its metadata is not valid: {problem}")
    registry = Registry.scan()
    where = f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', '')}"
    owner = registry.distribution_of(function)
    record = next(
        (r for r in registry.records if r.kind == "passes" and r.distribution == owner and _names(r, where)), None
    )
    expected = getattr(function, "__name__", metadata.name) if record is None else record.name
    whose = "the function's name" if record is None else f"the entry point of {record.origin}"
    if metadata.name not in (None, expected):
        return Fault(f"metadata.name is {metadata.name!r}, and {whose} is {expected!r}")
    return None


def _names(record: Any, where: str) -> bool:
    """Does an entry point name this function, in its module or in a package above it?"""
    module, _, name = record.entry_point.partition(":")
    own_module, _, own_name = where.partition(":")
    return name == own_name and (own_module == module or own_module.startswith(f"{module}."))


def test_total(kit: PassKit) -> Fault | None:
    """Call it with each list, and check that a list comes back."""
    for algorithms, event in _cases(kit):
        given = _named(algorithms)
        try:
            result: Any = _call(kit, algorithms, event)
        except Exception as error:  # noqa: BLE001
            return Fault(f"for {given} at {event.name} {type(error).__name__} ({error}) was raised", error)
        if not isinstance(result, Sequence) or isinstance(result, str):
            return Fault(f"for {given} at {event.name} it returned {result!r}")
    return None


def test_loses_nobody(kit: PassKit) -> Fault | None:
    """Compare the members of each list before and after."""
    may_change = metadata_of(kit.make_pass()).changes_members
    for algorithms, event, result in _results(kit):
        given = f"for {_named(algorithms)} at {event.name} it returned {_named(result)}"
        before, after = list(map(id, algorithms)), list(map(id, result))
        if len(set(after)) < len(after):
            return Fault(f"{given}, one of them twice")
        if set(before) != set(after) and not may_change:
            return Fault(given)
        if wrong := [a for a in result if isinstance(a, type) or not hasattr(a, "apply") or not hasattr(a, "match")]:
            return Fault(f"{given}, and {wrong[0]!r} is not an algorithm")
    return None


def test_stable(kit: PassKit) -> Fault | None:
    """Compare the order of algorithms that the pass can't distinguish: of one class, or unknown to it."""
    turns = metadata_of(kit.make_pass()).stage == "direction"
    for algorithms, event, result in _results(kit):
        kinds = {type(a) for a in algorithms} - {Unknown, AnotherUnknown}
        groups = [[a for a in algorithms if type(a) is kind] for kind in kinds]
        for group in (*groups, [a for a in algorithms if isinstance(a, Unknown)]):
            members = set(map(id, group))
            now = list(dict.fromkeys(id(a) for a in result if id(a) in members))
            then = [i for i in map(id, group) if i in set(now)]
            if now != then and not (turns and now == then[::-1]):
                return Fault(
                    f"for {_named(algorithms)} at {event.name} it changed the order of {_named(group)} among them"
                )
    return None


def test_idempotent(kit: PassKit) -> Fault | None:
    """Call it with its own results."""
    turns = metadata_of(kit.make_pass()).stage == "direction"
    for algorithms, event, once in _results(kit):
        twice = _arranged(kit, once, event)
        if twice is None or _same(once, twice) or (turns and _same(once, _arranged(kit, twice, event) or [])):
            continue
        return Fault(
            f"for {_named(algorithms)} at {event.name} it returned {_named(once)}; applied to that, it "
            f"changed the order to {_places(once, twice)} (positions in its own result)"
        )
    return None


def test_deterministic(kit: PassKit) -> Fault | None:
    """Call it with each list several times, and check that it touches nothing else."""
    if fault := _touching(kit):
        return fault
    if not metadata_of(kit.make_pass()).pure:
        pytest.skip("its metadata says pure=False")
    return _changing(kit)


def test_fast(kit: PassKit) -> Fault | None:
    """Measure it with ten algorithms."""
    function: Any = kit.make_pass()
    metadata = metadata_of(function)
    bound_s = PURE_S if metadata.pure else IMPURE_S
    ten = [*_pool(kit), *_pool(kit), *_pool(kit), *_pool(kit)][:10]
    for event in map(Event, metadata.events or Event):
        if _arranged(kit, ten, event) is None:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            took_s = patiently(lambda: least_seconds(lambda: function(list(ten), event), 5, 10), bound_s)  # noqa: B023
        if took_s > bound_s:
            return Fault(
                f"for {len(ten)} algorithms at {event.name} it takes {took_s * 1e6:.0f} us, "
                f"the limit is {bound_s * 1e6:.0f} us"
            )
    return None


def _pool(kit: PassKit) -> list[Any]:
    """Return algorithms to arrange: unknown ones, and for each of the kit's two of its class and one of a subclass."""
    one, other = list(kit.make_algorithms()), list(kit.make_algorithms())
    heirs = list(kit.make_algorithms())
    for heir in heirs:
        try:
            heir.__class__ = type(f"My{type(heir).__name__}", (type(heir),), {})
        except TypeError:  # the class forbids it
            continue
    unknown = [Unknown(), AnotherUnknown(), Unknown()]
    return [x for group in itertools.zip_longest(one, unknown, heirs, other) for x in group if x is not None]


def _cases(kit: PassKit) -> Iterator[tuple[list[Any], Event]]:
    """Yield lists of algorithms with the events at which the pass runs, always the same ones."""
    pool, chance = _pool(kit), random.Random(7)  # noqa: S311  not a secret
    lists: list[Sequence[Any]] = [[], *([a] for a in pool), *itertools.permutations(pool[:4])]
    lists += [chance.sample(pool, min(len(pool), size)) for size in (2, 3, 4, 5, 6) for _ in range(8)]
    events = [Event(event) for event in metadata_of(kit.make_pass()).events or Event]
    for place, algorithms in enumerate(lists):
        for event in events if not algorithms else {events[place % len(events)], events[-1 - place % len(events)]}:
            yield list(algorithms), event


def _results(kit: PassKit) -> Iterator[tuple[list[Any], Event, list[Any]]]:
    """Yield the cases with what the pass makes of them, if that is a list."""
    if _changing(kit):
        pytest.skip("its order for one list changes from call to call; test_deterministic judges that")
    for algorithms, event in _cases(kit):
        result = _arranged(kit, algorithms, event)
        if result is not None:
            yield algorithms, event, result


def _changing(kit: PassKit) -> Fault | None:
    """Return the first list whose order changes from call to call, if any."""
    for algorithms, event in _cases(kit):
        first, *others = [_arranged(kit, algorithms, event) for _ in range(_CALLS)]
        for number, other in enumerate(others, start=2):
            if first is not None and other is not None and not _same(first, other):
                return Fault(
                    f"for {_named(algorithms)} at {event.name} the first call gave {_places(algorithms, first)}, "
                    f"call {number} gave {_places(algorithms, other)}, as places in the list given"
                )
    return None


def _touching(kit: PassKit) -> Fault | None:
    """Return what a pass changes besides the order: attributes of the algorithms, global generators."""
    for algorithms, event in _cases(kit):
        before, generators = [_marks(a) for a in algorithms], generator_states()
        _arranged(kit, algorithms, event)
        where = f"for {_named(algorithms)} at {event.name} it"
        for algorithm, (marks, _) in zip(algorithms, before, strict=True):
            now, _kept = _marks(algorithm)
            if names := sorted(n for n in {*marks, *now} if marks.get(n) != now.get(n)):
                return Fault(f"{where} changed {', '.join(names)} of {type(algorithm).__name__}")
        if moved := moved_since(generators):
            return Fault(f"{where} moved the global generator of {join_words(moved)}")
    return None


def _marks(algorithm: Any) -> tuple[dict[str, Any], list[Any]]:
    """Return the ids of each attribute's objects, and the objects, so that the ids stay theirs."""
    own = dict(getattr(algorithm, "__dict__", {}))
    inner = {
        n: [*v, *v.values()] if isinstance(v, dict) else list(v) for n, v in own.items() if isinstance(v, _HOLDERS)
    }
    return {name: (id(v), list(map(id, inner.get(name, ())))) for name, v in own.items()}, [own, inner]


def _arranged(kit: PassKit, algorithms: Sequence[Any], event: Event) -> list[Any] | None:
    """Return what the pass makes of a list, or None if that is not a list, which another check reports."""
    try:
        return list(_call(kit, algorithms, event))
    except Exception:  # noqa: BLE001
        return None


def _call(kit: PassKit, algorithms: Sequence[Any], event: Event) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a pass may warn
        return kit.make_pass()(list(algorithms), event)


def _same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return list(map(id, one)) == list(map(id, other))


def _named(algorithms: Sequence[Any]) -> str:
    return f"[{', '.join(type(a).__name__ for a in algorithms)}]"


def _places(algorithms: Sequence[Any], result: Sequence[Any]) -> list[int]:
    return [next((i for i, a in enumerate(algorithms) if a is b), -1) for b in result]
