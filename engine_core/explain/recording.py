"""Find out the order: from algorithms, from a config, from names of installed algorithms, from an engine."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ..algorithm import Algorithm
from ..config import (
    Config,
    Place,
    PluginEntry,
    SourceFile,
    build_algorithms,
    build_passes,
    build_plugin,
    find_plugin,
    import_plugin,
)
from ..engine import Engine, admit, problems_of
from ..errors import OrderError
from ..event import Event
from ..messages import join_words
from ..needs import EVERYTHING, Offers
from ..observed import ObservedList
from ..passes import AlgorithmRecord, Derivation, Member, PassArgument, PassList, parse_passes, precedes
from ..registry import Registry
from .explanation import Explanation, Unordered, skipped_by


def explain_algorithms(
    algorithms: Sequence[Algorithm],
    algorithm_passes: PassArgument | None = None,
    *,
    distributions: Iterable[str] = (),
    listeners: Sequence[object] = (),
    offers: Offers = EVERYTHING,
) -> Explanation:
    """Return the order at each event that an algorithm lists.

    Algorithms that no engine would accept together are explained too; `problems` says why.

    Args:
        distributions: those in use besides the algorithms' own, for example by callbacks.
        listeners: callbacks and logger destinations, or their classes, which the loop may refuse too.
        offers: what the loop offers.

    Example:
        >>> len(explain_algorithms([]))
        0
    """
    registry = Registry.scan()
    members = admit(ObservedList.of(algorithms), {}, registry)
    passes = PassList(registry)
    passes.use({*distributions, *(m.origin.distribution for m in members if m.origin is not None)}, registry)
    for function, index in parse_passes(algorithm_passes):
        passes.insert(function, index)
    return _explain(members, passes, listeners, offers)


def explain_config(config: Config, loop: str | None = None) -> Explanation:
    """Return the order at each event for the algorithms, passes and `order` of a config.

    Args:
        loop: an installed loop, such as `fsdp`; what it refuses is among the problems. Callbacks and loggers are then
            imported, and known by their class.
    """
    algorithms, listeners = build_algorithms(config), [*config.entries("callbacks", "loggers")]
    return explain_algorithms(
        algorithms,
        build_passes(config, algorithms),
        distributions=[find_plugin("callbacks", e.name, at).distribution for e, at in listeners if e.name is not None],
        listeners=[import_plugin("callbacks", *listed) for listed in listeners] if loop is not None else (),
        offers=_offers_of(loop),
    )


def explain_installed(names: Sequence[str], loop: str | None = None) -> Explanation:
    """Return the order at each event for installed algorithms, each made with its default arguments.

    Args:
        loop: an installed loop, such as `fsdp`; what it refuses is among the problems.
    """
    offers = _offers_of(loop)
    algorithms = [build_plugin("algorithms", PluginEntry(name=n), Place(SourceFile(n))) for n in names]
    return explain_algorithms(algorithms, offers=offers)


def explain_engine(engine: Engine) -> Explanation:
    """Return the order at each event in an engine."""
    return _explain(engine.members, engine.passes)


def _explain(
    members: Sequence[Member], passes: PassList, listeners: Sequence[object] = (), offers: Offers = EVERYTHING
) -> Explanation:
    problems = [_with_notes(problem) for problem in problems_of(members, listeners, offers, passes.registry)]
    warnings = list[str]()
    derivations: dict[str, Derivation] = {}
    unordered: dict[str, Unordered] = {}
    for event in Event:
        present = [member for member in members if event in member.events]
        try:
            derivation = passes.derivation(present, event)
        except OrderError as error:
            if not any(str(error) in problem for problem in problems):  # a cycle is among them already
                problems.append(_with_notes(error))
            unordered[event.value] = Unordered(tuple(map(AlgorithmRecord.of, present)), str(error))
            continue
        if present:
            derivations[event.value] = derivation
        for message, users in passes.broken(derivation):
            (problems if users is None else warnings).append(message)
    return Explanation(
        algorithms=tuple(map(AlgorithmRecord.of, members)),
        passes=tuple(active.record for active in passes.active),
        derivations=derivations,
        unordered=unordered,
        skipped=tuple(skipped_by(members, passes, tuple(e.value for e in Event if e in {*derivations, *unordered}))),
        problems=tuple(problems),
        warnings=(*warnings, *_unordered_writers(members, passes, derivations)),
    )


def _unordered_writers(
    members: Sequence[Member], passes: PassList, derivations: Mapping[str, Derivation]
) -> Iterator[str]:
    """Yield the pairs that write one field at an event where they change places if the user's list is reversed.

    Not two of one class: they share a name, so nothing could order them.
    """
    alike = [
        (one, other, fields)
        for one, other in itertools.combinations(members, 2)
        if (fields := sorted({*_within(one, other), *_within(other, one)}))
        and type(one.algorithm) is not type(other.algorithm)
    ]
    turned = {e: passes.derivation([m for m in members[::-1] if e in m.events], Event(e)) for e in derivations if alike}
    for one, other, fields in alike:
        names = one.name, other.name
        events = [e for e in derivations if precedes(*names, derivations[e].final) != precedes(*names, turned[e].final)]
        if events:
            yield (
                f"{one.title} and {other.title} both write {join_words(fields)}, and only their positions in the list "
                f"decide which runs first at {join_words(events)}: declare before, after, around or within in the "
                "metadata of one, or set the order with explicit_order, in a config with `order:`"
            )


def _within(one: Member, other: Member) -> Iterator[str]:
    """Yield what one algorithm writes that is what the other writes, or a part of it."""
    others = other.metadata.writes or ()
    return (name for name in one.metadata.writes or () if any(f"{name}.".startswith(f"{each}.") for each in others))


def _with_notes(error: BaseException) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


def _offers_of(loop: str | None) -> Offers:
    """Return what an installed loop offers; None: the Trainer on one process."""
    return EVERYTHING if loop is None else Registry.scan().load("loops", loop)
