"""Read a record for each of our entry points: disabled, ambiguous, broken or available, as metadata shows."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

from ..errors import nearest, suggestion
from ..messages import enumerated
from .distributions import EntryPoint, Installed, normalise
from .entry_checks import what_is_doubtful, why_broken
from .ownership import claimants_of, owner_among
from .records import ALLOW, CORE, DENY, KINDS, PREFIX, Kind, PluginRecord, Source


def read_records(found: Iterable[Installed], environ: Mapping[str, str]) -> dict[PluginRecord, Source]:
    """Return a record for each of our entry points, sorted by kind, name and distribution, with its source."""
    sources: dict[PluginRecord, Source] = {}
    taken = set()
    found = list(found)
    distributions = {installed.name for installed in found}
    for installed in found:
        doubts = what_is_doubtful(installed) if installed.name != CORE else ""
        for entry_point in sorted(installed.entry_points, key=_is_misspelt):  # the first of each name is kept
            record = _read(installed, entry_point, doubts)
            if record.distribution != CORE and (reason := _why_disabled(record, environ, distributions)):
                record = replace(record, status="disabled", reason=reason)
            if (key := (record.kind, record.qualified_name)) not in taken:
                taken.add(key)
                sources[record] = Source(entry_point, installed)
    # Foreign ones first: marking makes new records, and the keys of `sources` are the old ones. What is disabled or
    # broken is known by now, and claims no name.
    records = _mark_ambiguous(_mark_foreign(sources))
    marked = zip(records, sources.values(), strict=True)
    return dict(sorted(marked, key=lambda pair: (KINDS.index(pair[0].kind), pair[0].name, pair[0].distribution)))


def doubtful_items(records: Iterable[PluginRecord], environ: Mapping[str, str]) -> Iterator[str]:
    """Yield items of the allow-list or the deny-list that are probably misspelt or have no effect."""
    records = list(records)
    for variable in (ALLOW, DENY):
        for item in sorted(_listed(environ.get(variable, ""))):
            called = [record for record in records if item in _called(record)]
            if called and all(record.distribution == CORE for record in called):
                yield f"{variable} lists {item!r}, which has no effect: {CORE}'s own plugins are always enabled"
            elif not called:
                meant = suggestion(item, [name for record in records for name in _called(record)])
                if meant or variable == DENY:  # an allow-list may be shared between environments
                    yield f"{variable} lists {item!r}, which is not an installed plugin or distribution{meant}"


def _is_misspelt(entry_point: EntryPoint) -> bool:
    return entry_point.group not in [PREFIX + kind for kind in KINDS]


def _read(installed: Installed, entry_point: EntryPoint, doubts: str) -> PluginRecord:
    group, name, value = entry_point
    last = re.sub(r"^engine[-_.]*core[-_.]*", "", group.lower())
    near = nearest(last, KINDS)
    kind: Any = near or nearest(last, KINDS, cutoff=0.0)
    record = PluginRecord(kind, name, installed.name, installed.version, value, reason=doubts)
    if installed.name == CORE:
        return record
    if _is_misspelt(entry_point):
        meant = f"{PREFIX + kind!r}" if near else "one of " + ", ".join(repr(PREFIX + known) for known in KINDS)
        wrong = f"registered in the unknown group {group!r}; its authors have to write {meant}"
    else:
        wrong = why_broken(installed, entry_point)
    return replace(record, status="broken", reason=wrong) if wrong else record


def _why_disabled(record: PluginRecord, environ: Mapping[str, str], distributions: AbstractSet[str]) -> str:
    """If an item is ambiguous, the stricter meaning counts: a distribution's name allows only that distribution."""
    allowed, denied = environ.get(ALLOW), environ.get(DENY, "")
    others = distributions - {record.distribution}
    if allowed is not None and not (_called(record) - others) & _listed(allowed):
        return f"{ALLOW} allows only {allowed!r}"
    return f"listed in {DENY}" if _called(record) & _listed(denied) else ""


def _called(record: PluginRecord) -> set[str]:
    """Return the names that a list can use for a record."""
    bare = record.name.replace(":", "::")  # so that it can't look like another's qualified name
    names = (bare, record.distribution, record.qualified_name)
    return set(map(normalise, names))


def _listed(value: str) -> set[str]:
    items = (":".join(part.strip() for part in item.split(":")) for item in value.split(","))
    return {normalise(item) for item in items if item}


def _mark_foreign(sources: Mapping[PluginRecord, Source]) -> list[PluginRecord]:
    """Mark the records whose entry point lies in another distribution's module."""
    claimants = claimants_of(sources.items())
    marked = list(sources)
    for place, record in enumerate(marked):
        module = record.module
        owner = owner_among(module, claimants[module.partition(".")[0]])
        if record.status == "available" and owner not in (None, record.distribution):
            authors = f"report it to the authors of {record.distribution}"
            marked[place] = _doubted(record, f"its entry point lies in {module!r}, a module of {owner}; {authors}")
    return marked


def _mark_ambiguous(records: list[PluginRecord]) -> list[PluginRecord]:
    """Mark the records that share their name with others."""
    claims: dict[tuple[Kind, str], list[PluginRecord]] = defaultdict(list)
    for record in records:
        if record.status != "disabled":
            claims[record.kind, record.name].append(record)
    marked = list(records)
    for place, record in enumerate(records):
        sharing = claims[record.kind, record.name]
        if record.status == "available" and record.distribution != CORE and len(sharing) > 1:
            both = enumerated(sorted(str(r.origin) for r in sharing))
            rule = f"the bare name means {CORE}'s; " if any(r.distribution == CORE for r in sharing) else ""
            reason = f"{record.name!r} is claimed by {both}; {rule}use {record.qualified_name!r} for this one"
            marked[place] = replace(_doubted(record, reason), status="ambiguous")
    return marked


def _doubted(record: PluginRecord, reason: str) -> PluginRecord:
    return replace(record, reason="; ".join(filter(None, [reason, record.reason])))
