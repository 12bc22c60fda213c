"""What is installed: plugins found through entry points, listed without importing any of them."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, cast

from packaging.requirements import Requirement

from ..algorithm import snake_case
from ..callback import is_used_on
from ..errors import ArgumentError, ArgumentTypeError, PluginError, add_note, did_you_mean, nearest, suggestion
from ..messages import join_words
from ..metadata import AlgorithmMetadata
from .checks import load_plugin
from .installed import (
    ALLOW,
    CORE,
    DENY,
    KINDS,
    PREFIX,
    Installed,
    Kind,
    Origin,
    PluginRecord,
    brought_by,
    installed_distributions,
    installed_version,
    meets,
    normalise,
    parse_requirement,
    ships,
)

_NEAR = 0.85  # distributions of plugins often have the same ending


class Identity(NamedTuple):
    """An algorithm's registered name, what ships it (None: the user), and its record if any."""

    name: str
    origin: Origin | None
    record: PluginRecord | None


class Registry:
    """The installed plugins. Reading it imports nothing; `load` imports one.

    Attributes:
        findings: what is wrong with what is installed, and shows in no record.
        doubts: probable mistakes in the allow-list and the deny-list.

    Example:
        >>> [record.name for record in Registry.scan().records if record.distribution == "engine-core"][:1]
        ['apply_declared_order']
    """

    _scanned: ClassVar[dict[tuple[str | None, str | None], Registry]] = {}

    def __init__(self, environ: Mapping[str, str]) -> None:
        found, unreadable = installed_distributions()
        self.records: tuple[PluginRecord, ...] = _read_records(found, environ)
        self.findings = (*unreadable, *_unknown_groups(found))
        self.doubts = tuple(_doubtful_items(self.records, environ))
        self._loaded: dict[tuple[Kind, str], Any] = {}
        self._claims: dict[str, list[str]] = defaultdict(list)
        for record in self.records:
            for module in _and_parents(record.module):
                if record.distribution not in self._claims[module]:
                    self._claims[module].append(record.distribution)
        self._owners: dict[str, str | None] = {}

    @classmethod
    def scan(cls, *, refresh: bool = False) -> Registry:
        """Return the installed plugins; the disk is read once per process unless `refresh`.

        `ENGINE_CORE_PLUGINS` (allow-list) and `ENGINE_CORE_DISABLE_PLUGINS` hold comma-separated names,
        distributions or `distribution:name`; engine-core's own entries are always allowed.
        """
        if refresh:
            cls._scanned.clear()
            importlib.invalidate_caches()
        # Keyed by the two variables: a program may change them between engines, and they decide what the records say.
        key = (os.environ.get(ALLOW), os.environ.get(DENY))
        if key not in cls._scanned:
            cls._scanned[key] = cls(os.environ)
        return cls._scanned[key]

    def find(self, kind: Kind, name: str) -> PluginRecord:
        """Return the record that `name` (or `distribution:name`) refers to.

        Raises:
            PluginError: if it is unknown, disabled, broken, or claimed by several distributions.
        """
        if kind not in KINDS:
            raise ArgumentError(f"{kind!r} is not a kind of plugin{did_you_mean(kind, KINDS)}")
        distribution, _, bare = name.rpartition(":")
        claims = [r for r in self.records if r.kind == kind and r.name == bare]
        if distribution:
            claims = [r for r in claims if r.distribution == normalise(distribution)]
        if not claims:
            raise PluginError(self._unknown(kind, name))
        usable = [r for r in claims if r.status != "disabled"] or claims
        builtin = [r for r in usable if r.distribution == CORE]
        if len(usable) > 1 and not builtin:
            choices = ", ".join(f"{r.qualified_name} ({r.version}, {r.entry_point})" for r in usable)
            raise PluginError(f"{name!r} is claimed by several distributions; choose one of: {choices}")
        record = (builtin or usable)[0]
        if record.status == "disabled":
            raise PluginError(f"{record.title} is disabled: {record.reason}")
        if record.status == "broken":
            raise PluginError(_refusal(record))
        return record

    def load(self, kind: Kind, name: str) -> Any:
        """Import the plugin that `name` refers to, check it and return it.

        A plugin that fails is quarantined: its record becomes `broken`, with the reason. What it prints meanwhile goes
        to stderr; stdout belongs to the program.

        Raises:
            PluginError: as `find` does, or because the import or the check failed; the cause is attached.
        """
        record = self.find(kind, name)
        key = _key(record)
        if key not in self._loaded:
            try:
                with contextlib.redirect_stdout(sys.stderr):
                    self._loaded[key] = load_plugin(record)
            except PluginError as failure:
                broken = replace(record, status="broken", reason=str(failure))
                self.records = tuple(broken if r is record else r for r in self.records)
                raise PluginError(_refusal(broken)) from failure.__cause__
        return self._loaded[key]

    def require(self, requirements: Iterable[str]) -> None:
        """Check that the plugin distributions a run requires, as `some-plugin>=1.2`, are installed; import nothing.

        Raises:
            PluginError: names the first requirement that is not met and what is installed.
            ArgumentError: (a ValueError) for an invalid requirement.
        """
        if isinstance(requirements, str):
            raise ArgumentTypeError(f"requirements are a list; write [{requirements!r}]")
        for requirement in map(parse_requirement, requirements):
            if requirement.marker is not None and not requirement.marker.evaluate():
                continue
            name = normalise(requirement.name)
            records = [r for r in self.records if r.distribution == name]
            if not records:
                raise PluginError(f"{requirement} is required{self._why_missing(requirement)}")
            what = f"{requirement} is required, but {name} {records[0].version} is"
            if all(r.status in ("disabled", "broken") for r in records):
                raise PluginError(f"{what} {records[0].status}: {records[0].reason}")
            if not meets(requirement, records[0].version):
                raise PluginError(f"{what} installed; run: pip install '{requirement}'")

    def distribution_of(self, plugin: object) -> str | None:
        """Return the distribution that an instance, a class or a function comes from, None for the user's own.

        It is that of the first class in the MRO shipped by a plugin; engine-core's only for what the core itself ships.
        """
        owners = [self.owner_of(module) for module in _modules(plugin)]
        return next((owner for owner in owners if owner not in (None, CORE)), None) or (owners[0] if owners else None)

    def owner_of(self, module: str) -> str | None:
        """Return the distribution that ships a module; None: none with plugins does, or it can't be decided.

        If several have entry points in its top-level package, the one that lists it among its files is the owner, else
        the only one with entry points in it or in the nearest package above. No one else can have a module of the core.
        """
        if module not in self._owners:
            package, above = module.partition(".")[0], _and_parents(module)
            rivals = self._claims.get(package, [])
            by_files = [[name for name in rivals if ships(name, m)] for m in above if len(rivals) > 1]
            deciding = (names for names in (*by_files, *(self._claims.get(m, []) for m in above)) if len(names) == 1)
            self._owners[module] = CORE if package == PREFIX[:-1] else next(deciding, [None])[0]
        return self._owners[module]

    def origin_of(self, plugin: object) -> Origin | None:
        """Return what ships an instance, a class or a function, with the version; None for the user's own."""
        owner = self.distribution_of(plugin)
        return None if owner is None else Origin(owner, self.version_of(owner))

    def version_of(self, distribution: str) -> str:
        """Return the version of a distribution that ships plugins."""
        return next((r.version for r in self.records if r.distribution == distribution), "?")

    def identify(self, algorithm: object) -> Identity:
        """Return the name that others refer to an algorithm by, what ships it, and the record it is registered under.

        The name is its metadata's, else its entry point's, else its class's in snake case. The record is the one that
        leads to its class, or to a base of the same name.
        """
        cls, origin, metadata = type(algorithm), self.origin_of(algorithm), getattr(algorithm, "metadata", None)
        own = [r for r in self.records if r.kind == "algorithms" and r.origin == origin]
        bases = [base for base in cls.__mro__ if base.__name__ == cls.__name__]
        record = next((r for base in bases for r in own if _leads_to(r, base)), None)
        declared = metadata.name if isinstance(metadata, AlgorithmMetadata) else None
        return Identity(declared or (snake_case(cls.__name__) if record is None else record.name), origin, record)

    def records_of(self, kind: Kind, name: str | None = None) -> list[PluginRecord]:
        """Return the records of a kind, of those with a name if one is given, whatever their status."""
        return [r for r in self.records if r.kind == kind and name in (None, r.name)]

    def _unknown(self, kind: Kind, name: str) -> str:
        known = [r.name for r in self.records if r.kind == kind]
        other_kinds = [r.kind for r in self.records if r.name == name]
        elsewhere = f", but among the {other_kinds[0]}: give it there" if other_kinds else brought_by(kind, name)
        hint = elsewhere or did_you_mean(name, known)
        damage = "; not all that is installed can be read: run `engine-core plugins doctor`" if self.findings else ""
        return f"{name!r} is not among the installed {kind}{hint}{damage}"

    def _why_missing(self, requirement: Requirement) -> str:
        name, installed = normalise(requirement.name), {r.distribution: r.version for r in self.records}
        if (version := installed_version(name)) is not None:
            only = "only distributions with plugins can be required"
            return f", and {name} {version} is installed but ships no plugin; {only}"
        found = ", ".join(f"{other} {version}" for other, version in sorted(installed.items()))
        missing = f" and no plugin of {name} is installed (installed: {found or 'none'}); "
        if owner := next((r.distribution for r in self.records if normalise(r.name) == name), None):
            return f"{missing}{requirement.name!r} is a plugin of {owner}; require that distribution"
        if near := nearest(name, installed, cutoff=_NEAR):
            return f"{missing}did you mean {near!r}?"
        how = f"from engine-core's sources if it is part of them, else run: pip install '{requirement}'"
        return f"{missing}install it: {how}"


def as_plugins(kind: Kind, given: Any, what: str, rank: int = 0) -> list[Any]:
    """Return instances for any mix of instances, names of installed plugins, and `(name, arguments)` pairs.

    Callbacks that are not for this rank, see `Callback.every_rank`, are left out, and not made.
    """
    items = [] if given is None else list(given) if isinstance(given, (list, tuple)) else [given]
    if len(items) == 2 and isinstance(items[0], str) and isinstance(items[1], Mapping):
        raise ArgumentError(f"{what}: put the pair in a list: {what}=[({items[0]!r}, {dict(items[1])!r})]")
    registry = Registry.scan()
    made = (_as_plugin(registry, kind, item, what, rank) for item in items)
    return [plugin for plugin in made if plugin is not None]


def _as_plugin(registry: Registry, kind: Kind, item: Any, what: str, rank: int) -> Any:
    """Return an instance, or None for one that is not used on this rank."""
    if not isinstance(item, (str, tuple, list)):
        return item if is_used_on(rank, item) else None
    pair = (item, {}) if isinstance(item, str) else item
    if len(pair) != 2 or not isinstance(pair[0], str) or not isinstance(pair[1], Mapping):
        raise ArgumentError(f"{what}: a pair is (name, arguments), such as ('noise', {{'std': 0.1}}), not {item!r}")
    name, arguments = pair
    plugin = registry.load(kind, name)
    signature = inspect.signature(plugin)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        unknown = [a for a in arguments if a not in signature.parameters]
        problem = f"no argument {unknown[0]!r}{did_you_mean(unknown[0], signature.parameters)}" if unknown else error
        raise ArgumentError(f"{kind[:-1]} {name!r}: {problem}") from error
    if not is_used_on(rank, plugin):
        return None
    try:
        return plugin(**arguments)
    except Exception as error:
        add_note(error, f"while making {kind[:-1]} {name!r} with {dict(arguments)!r}")
        raise


def _read_records(found: Iterable[Installed], environ: Mapping[str, str]) -> tuple[PluginRecord, ...]:
    """Return a record for each entry point in a group of ours, sorted by kind, name and distribution."""
    found = list(found)
    distributions = {installed.name for installed in found}
    records: dict[tuple[Kind, str], PluginRecord] = {}
    for name, version, entry_points, damage in found:
        for group, plugin, value in entry_points:
            kind = cast("Kind", group.removeprefix(PREFIX))
            if PREFIX + kind != group or kind not in KINDS:
                continue
            record = PluginRecord(kind, plugin, name, version, value)
            if name != CORE and (reason := _why_disabled(record, environ, distributions)):
                record = replace(record, status="disabled", reason=reason)
            elif name != CORE and damage:
                record = replace(record, status="broken", reason=damage)
            records.setdefault(_key(record), record)
    ordered = sorted(records.values(), key=lambda r: (KINDS.index(r.kind), r.name, r.distribution))
    return tuple(_mark_ambiguous(ordered))


def _mark_ambiguous(records: Sequence[PluginRecord]) -> Iterator[PluginRecord]:
    """Mark the records that share their name with others; what is disabled claims none."""
    claims: dict[tuple[Kind, str], list[PluginRecord]] = defaultdict(list)
    for record in records:
        if record.status != "disabled":
            claims[record.kind, record.name].append(record)
    for record in records:
        sharing = claims[record.kind, record.name]
        if record.status == "available" and record.distribution != CORE and len(sharing) > 1:
            both = join_words(sorted(str(r.origin) for r in sharing))
            rule = f"the bare name means {CORE}'s; " if any(r.distribution == CORE for r in sharing) else ""
            reason = f"{record.name!r} is claimed by {both}; {rule}use {record.qualified_name!r} for this one"
            yield replace(record, status="ambiguous", reason=reason)
        else:
            yield record


def _why_disabled(record: PluginRecord, environ: Mapping[str, str], distributions: AbstractSet[str]) -> str:
    """If an item is ambiguous, the stricter meaning counts: a distribution's name allows only that distribution."""
    allowed, denied = environ.get(ALLOW), environ.get(DENY, "")
    others = distributions - {record.distribution}
    # A command runs only where it is typed, and the one that examines plugins has to work under any list.
    if allowed is not None and record.kind != "commands" and not (_called(record) - others) & _listed(allowed):
        return f"{ALLOW} allows only {allowed!r}"
    return f"listed in {DENY}" if _called(record) & _listed(denied) else ""


def _called(record: PluginRecord) -> set[str]:
    """Return the names that a list can use for a record."""
    return set(map(normalise, (record.name, record.distribution, record.qualified_name)))


def _listed(value: str) -> set[str]:
    items = (":".join(part.strip() for part in item.split(":")) for item in value.split(","))
    return {normalise(item) for item in items if item}


def _doubtful_items(records: Sequence[PluginRecord], environ: Mapping[str, str]) -> Iterator[str]:
    """Yield items of the allow-list or the deny-list that are probably misspelt or have no effect."""
    for variable in (ALLOW, DENY):
        for item in sorted(_listed(environ.get(variable, ""))):
            called = [record for record in records if item in _called(record)]
            if called and all(record.distribution == CORE for record in called):
                yield f"{variable} lists {item!r}, which has no effect: {CORE}'s own plugins are always enabled"
            elif not called:
                meant = suggestion(item, [name for record in records for name in _called(record)])
                if meant or variable == DENY:  # an allow-list may be shared between environments
                    yield f"{variable} lists {item!r}, which is not an installed plugin or distribution{meant}"


def _unknown_groups(found: Iterable[Installed]) -> Iterator[str]:
    groups: dict[str, str] = {kind: PREFIX + kind for kind in KINDS}
    for installed in found:
        for group, plugin, _ in installed.entry_points:
            if group not in groups.values():
                near = nearest(re.split(r"(?i)core[-_.]+", group)[-1], groups)
                meant = f"did you mean {groups[near]!r}?" if near else f"known: {', '.join(groups.values())}"
                yield f"{installed.name} registers {plugin!r} in the unknown group {group!r}; {meant}"


def _key(record: PluginRecord) -> tuple[Kind, str]:
    return record.kind, record.qualified_name


def _and_parents(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:length]) for length in range(len(parts), 0, -1)]


def _modules(plugin: object) -> list[str]:
    if isinstance(plugin, type):
        return [cls.__module__ for cls in plugin.__mro__]
    own = getattr(plugin, "__module__", None) if callable(plugin) and hasattr(plugin, "__name__") else None
    return [own] if own else [cls.__module__ for cls in type(plugin).__mro__]


def _leads_to(record: PluginRecord, cls: type) -> bool:
    """Does a record's entry point name a class, as it is now or, after a reload, was? No code of modules runs."""
    found: object = sys.modules.get(record.module)
    for name in record.attribute.split("."):
        found = inspect.getattr_static(found, name, None)
    return found is cls or (record.module, record.attribute) == (cls.__module__, cls.__qualname__)


def _refusal(record: PluginRecord) -> str:
    return f"{record.title} can't be loaded from {record.entry_point!r}: {record.reason}"
