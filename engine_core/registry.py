"""What is installed: plugins found through entry points, listed without importing any of them."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from .algorithm import snake_case
from .callback import Callback
from .errors import ArgumentError, PluginError, did_you_mean
from .event import Event
from .installed import EntryPoint, import_object, installed_entry_points, normalise
from .metadata import AlgorithmMetadata, PassMetadata
from .requirements import check_requirements

__all__ = ["CORE", "KINDS", "Kind", "PluginRecord", "Registry", "Status"]

Kind = Literal["algorithms", "passes", "callbacks"]
Status = Literal["available", "disabled", "ambiguous", "broken"]
KINDS: tuple[Kind, ...] = ("algorithms", "passes", "callbacks")
CORE = "engine-core"
ALLOW, DENY = "ENGINE_CORE_PLUGINS", "ENGINE_CORE_DISABLE_PLUGINS"


@dataclass(frozen=True)
class PluginRecord:
    """One entry point: what it is called, who ships it, and whether it can be used.

    Args:
        kind: `algorithms`, `passes` or `callbacks`.
        name: the entry point's name, which is the plugin's.
        distribution, version: who ships it.
        entry_point: its value, `module:attribute`.
        status: `available`; `disabled` by the environment; `ambiguous`: the bare name is claimed by others too;
            `broken`: loading it failed.
        reason: why it is not simply available.
    """

    kind: Kind
    name: str
    distribution: str
    version: str
    entry_point: str
    status: Status = "available"
    reason: str = ""

    @property
    def qualified_name(self) -> str:
        """The name with the distribution and a colon before it, which nobody else can claim."""
        return f"{self.distribution}:{self.name}"


class Registry:
    """The installed plugins. Reading it imports nothing; `load` imports one.

    Example:
        >>> [record.name for record in Registry.scan().records if record.distribution == "engine-core"][:1]
        ['apply_declared_order']
    """

    _scanned: ClassVar[dict[tuple[str | None, str | None], Registry]] = {}

    def __init__(self, entry_points: Iterable[EntryPoint], environ: Mapping[str, str]) -> None:
        self._entry_points: dict[tuple[Kind, str, str], EntryPoint] = {}
        found: list[PluginRecord] = []
        for entry_point in entry_points:
            record = _record(entry_point, environ)
            key = _key(record)
            if key not in self._entry_points:
                self._entry_points[key] = entry_point
                found.append(record)
        self.records: tuple[PluginRecord, ...] = tuple(
            sorted(_mark_ambiguous(found), key=lambda r: (KINDS.index(r.kind), r.name, r.distribution))
        )
        self._loaded: dict[tuple[Kind, str, str], Any] = {}
        self._failures: dict[tuple[Kind, str, str], BaseException] = {}
        self._owners = _package_owners(self.records)

    @classmethod
    def scan(cls, *, refresh: bool = False) -> Registry:
        """Return the installed plugins; the disk is read once per process unless `refresh`.

        `ENGINE_CORE_PLUGINS` (allow-list) and `ENGINE_CORE_DISABLE_PLUGINS` hold comma-separated names,
        distributions or `distribution:name`; engine-core's own entries are always allowed.
        """
        if refresh:
            cls._scanned.clear()
        key = (os.environ.get(ALLOW), os.environ.get(DENY))
        if key not in cls._scanned:
            groups = tuple(f"engine_core.{kind}" for kind in KINDS)
            found = [point for point in installed_entry_points("engine_core.") if point.group in groups]
            cls._scanned[key] = cls(found, os.environ)
        return cls._scanned[key]

    def find(self, kind: Kind, name: str) -> PluginRecord:
        """Return the record that `name` (or `distribution:name`) stands for.

        Raises:
            PluginError: if it is unknown, disabled, broken, or claimed by several distributions.
        """
        if kind not in KINDS:
            raise ArgumentError(f"{kind!r} is no kind of plugin{did_you_mean(kind, KINDS)}")
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
        if record.status in ("disabled", "broken"):
            cause = self._failures.get(_key(record))
            raise PluginError(f"{_title(record)} is {record.status}: {record.reason}") from cause
        return record

    def load(self, kind: Kind, name: str) -> Any:
        """Import the plugin that `name` stands for, check it and return it.

        A plugin that fails is quarantined: its record becomes `broken`, with the reason.

        Raises:
            PluginError: as `find` does, or because the import or the check failed; the cause is attached.
        """
        record = self.find(kind, name)
        key = _key(record)
        if key not in self._loaded:
            try:
                plugin = import_object(self._entry_points[key])
                _check(record, plugin)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # a plugin may raise SystemExit while it is imported
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                self._failures[key] = error
                self._replace(record, replace(record, status="broken", reason=reason))
                raise PluginError(
                    f"{_title(record)} can't be loaded from {record.entry_point!r}: {reason}; "
                    f"fix or uninstall {record.distribution}, or disable it with {DENY}={record.qualified_name}"
                ) from error
            self._loaded[key] = plugin
        return self._loaded[key]

    def require(self, requirements: Iterable[str]) -> None:
        """Check that the distributions of plugins are there that a run demands, as `some-plugin>=1.2`; import nothing.

        Raises:
            PluginError: names the first requirement that is not met and what is installed.
        """
        enabled = {record.distribution for record in self.records if record.status != "disabled"}
        check_requirements(
            requirements,
            {record.distribution: record.version for record in self.records},
            {record.distribution: record.reason for record in self.records if record.distribution not in enabled},
        )

    def distribution_of(self, plugin: object) -> str | None:
        """Return the distribution that an instance, a class or a function comes from, None for the user's own.

        It is that of the first class in the MRO that a plugin ships; engine-core's only for what the core itself ships.
        """
        owners = [self._owner(module) for module in _modules(plugin)]
        return next((owner for owner in owners if owner not in (None, CORE)), None) or (owners[0] if owners else None)

    def version_of(self, distribution: str) -> str:
        """Return the version of a distribution that ships plugins."""
        return next((r.version for r in self.records if r.distribution == distribution), "?")

    def name_of(self, algorithm: object) -> str:
        """Return the registered name: its metadata's, else its entry point's, else its class's in snake case."""
        metadata = getattr(algorithm, "metadata", None)
        if isinstance(metadata, AlgorithmMetadata) and metadata.name is not None:
            return metadata.name
        record = self.record_of(algorithm)
        return snake_case(type(algorithm).__name__) if record is None else record.name

    def record_of(self, algorithm: object) -> PluginRecord | None:
        """Return the record under which an algorithm's class is registered."""
        own = ("algorithms", self.distribution_of(algorithm), type(algorithm).__name__)
        return next((r for r in self.records if (r.kind, r.distribution, r.entry_point.partition(":")[2]) == own), None)

    def passes_of(self, distribution: str) -> list[PluginRecord]:
        """Return the records of the passes that a distribution ships and that are not disabled."""
        return [
            r for r in self.records if r.kind == "passes" and r.distribution == distribution and r.status != "disabled"
        ]

    def _owner(self, module: str) -> str | None:
        while module:
            if module in self._owners:
                return self._owners[module]
            module = module.rpartition(".")[0]
        return None

    def _replace(self, old: PluginRecord, new: PluginRecord) -> None:
        self.records = tuple(new if record is old else record for record in self.records)

    def _unknown(self, kind: Kind, name: str) -> str:
        known = [r.name for r in self.records if r.kind == kind]
        other_kinds = [r.kind for r in self.records if r.name == name]
        if other_kinds:
            return f"{name!r} is not among the installed {kind}, but among the {other_kinds[0]}"
        return f"{name!r} is not among the installed {kind}{did_you_mean(name, known)}"


def _key(record: PluginRecord) -> tuple[Kind, str, str]:
    return record.kind, record.distribution, record.name


def _title(record: PluginRecord) -> str:
    singular = "pass" if record.kind == "passes" else record.kind[:-1]
    return f"{singular} {record.name!r} of {record.distribution} {record.version}"


def _record(entry_point: EntryPoint, environ: Mapping[str, str]) -> PluginRecord:
    group, name, value, distribution, version = entry_point
    kind: Any = group.rpartition(".")[2]
    record = PluginRecord(kind, name, distribution, version, value)
    reason = _why_disabled(record, environ)
    return replace(record, status="disabled", reason=reason) if reason else record


def _why_disabled(record: PluginRecord, environ: Mapping[str, str]) -> str:
    if record.distribution == CORE:
        return ""
    called = set(map(normalise, (record.name, record.distribution, record.qualified_name)))
    allowed, denied = environ.get(ALLOW), environ.get(DENY, "")
    if allowed is not None and not called & _listed(allowed):
        return f"{ALLOW} allows only {allowed!r}"
    return f"listed in {DENY}" if called & _listed(denied) else ""


def _listed(value: str) -> set[str]:
    return {normalise(item.strip()) for item in value.split(",") if item.strip()}


def _mark_ambiguous(records: list[PluginRecord]) -> list[PluginRecord]:
    active = [r for r in records if r.status != "disabled"]
    claims: dict[tuple[Kind, str], list[PluginRecord]] = defaultdict(list)
    for record in active:
        claims[record.kind, record.name].append(record)
    marked = []
    for record in records:
        others = [r for r in claims[record.kind, record.name] if r is not record]
        if record.status == "disabled" or record.distribution == CORE or not others:
            marked.append(record)
            continue
        both = " and ".join(sorted(r.distribution for r in [record, *others]))
        builtin = any(r.distribution == CORE for r in others)
        rule = f"the bare name gives {CORE}'s" if builtin else f"use {record.qualified_name!r}"
        marked.append(replace(record, status="ambiguous", reason=f"{record.name!r} is claimed by {both}; {rule}"))
    return marked


def _package_owners(records: Iterable[PluginRecord]) -> dict[str, str]:
    """Map modules and packages to the one distribution whose entry points lie in them; shared ones are left out."""
    claims: dict[str, set[str]] = defaultdict(set)
    for record in records:
        module = record.entry_point.partition(":")[0]
        while module:
            claims[module].add(record.distribution)
            module = module.rpartition(".")[0]
    return {module: next(iter(owners)) for module, owners in claims.items() if len(owners) == 1}


def _modules(plugin: object) -> list[str]:
    if isinstance(plugin, type):
        return [cls.__module__ for cls in plugin.__mro__]
    own = getattr(plugin, "__module__", None) if callable(plugin) and hasattr(plugin, "__name__") else None
    return [own] if own else [cls.__module__ for cls in type(plugin).__mro__]


def _check(record: PluginRecord, plugin: Any) -> None:
    """Raise a TypeError that says what this kind of plugin has to be."""
    if record.kind == "passes":
        if not callable(plugin) or isinstance(plugin, type):
            raise TypeError(f"a pass is a function (algorithms, event) -> algorithms, this is {plugin!r}")
        if not isinstance(getattr(plugin, "metadata", None), PassMetadata):
            raise TypeError("a registered pass is marked with @algorithm_pass(...), this one is not")
        return
    if not isinstance(plugin, type):
        raise TypeError(f"an entry point of kind {record.kind} names a class, this is {plugin!r}")
    if record.kind == "algorithms":
        methods = {name: getattr(plugin, name, None) for name in ("match", "apply")}
        missing = [n for n, m in methods.items() if not callable(m) or getattr(m, "__isabstractmethod__", False)]
        if missing:
            raise TypeError(f"an algorithm has match and apply, {plugin.__name__} has no {' and no '.join(missing)}")
        metadata = getattr(plugin, "metadata", AlgorithmMetadata())
        if not isinstance(metadata, AlgorithmMetadata):
            raise TypeError(f"{plugin.__name__}.metadata has to be an AlgorithmMetadata")
        if metadata.name not in (None, record.name):
            raise TypeError(f"its metadata says name={metadata.name!r}, and the entry point has another name")
    elif not issubclass(plugin, Callback) and not any(callable(getattr(plugin, event.value, None)) for event in Event):
        raise TypeError(f"a callback has methods named after events, {plugin.__name__} has none")
