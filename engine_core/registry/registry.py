"""What is installed: plugins found through entry points, listed without importing any of them."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

from ..algorithm import snake_case
from ..errors import ArgumentError, PluginError, did_you_mean
from ..metadata import AlgorithmMetadata
from .distributions import Installed, installed_distributions, normalise
from .loading import load_plugin
from .ownership import Ownership
from .records import ALLOW, CORE, DENY, KINDS, PREFIX, Kind, Origin, PluginRecord, Source
from .requirements import check_requirements
from .scan import doubtful_items, read_records


class Identity(NamedTuple):
    """An algorithm's registered name, what ships it (None: the user), and its record if any."""

    name: str
    origin: Origin | None
    record: PluginRecord | None


class Registry:
    """The installed plugins. Reading it imports nothing; `load` imports one.

    Example:
        >>> [record.name for record in Registry.scan().records if record.distribution == "engine-core"][:1]
        ['apply_declared_order']
    """

    _scanned: ClassVar[dict[tuple[str | None, str | None], Registry]] = {}

    def __init__(self, found: Iterable[Installed], environ: Mapping[str, str]) -> None:
        sources = read_records(found, environ)
        self.records: tuple[PluginRecord, ...] = tuple(sources)
        self._sources: dict[tuple[Kind, str], Source] = {_key(record): source for record, source in sources.items()}
        self._loaded: dict[tuple[Kind, str], Any] = {}
        self._failures: dict[tuple[Kind, str], BaseException] = {}
        self._ownership = Ownership(sources)
        self.doubts = tuple(doubtful_items(self.records, environ))
        """Probable mistakes in the allow-list and the deny-list."""

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
            cls._scanned[key] = cls(installed_distributions(PREFIX), os.environ)
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
            raise PluginError(_refusal(record)) from self._failures.get(_key(record))
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
            with contextlib.redirect_stdout(sys.stderr):
                loaded = load_plugin(record, self._sources[key])
            if loaded.error is not None:
                self._failures[key] = loaded.error
                self.records = tuple(loaded.record if r is record else r for r in self.records)
                raise PluginError(_refusal(loaded.record)) from loaded.error
            self._loaded[key] = loaded.plugin
        return self._loaded[key]

    def require(self, requirements: Iterable[str]) -> None:
        """Check that the plugin distributions a run requires, as `some-plugin>=1.2`, are installed; import nothing.

        Raises:
            PluginError: names the first requirement that is not met and what is installed.
        """
        usable = {r.distribution for r in self.records if r.status in ("available", "ambiguous")}
        check_requirements(
            requirements,
            {r.distribution: r.version for r in self.records},
            {r.distribution: f"{r.status}: {r.reason}" for r in self.records if r.distribution not in usable},
            {normalise(r.name): r.distribution for r in self.records},
        )

    def distribution_of(self, plugin: object) -> str | None:
        """Return the distribution that an instance, a class or a function comes from, None for the user's own.

        It is that of the first class in the MRO shipped by a plugin; engine-core's only for what the core itself ships.
        """
        return self._ownership.distribution_of(plugin)

    def origin_of(self, plugin: object) -> Origin | None:
        """Return what ships an instance, a class or a function, with the version; None for the user's own."""
        owner = self.distribution_of(plugin)
        return None if owner is None else Origin(owner, self.version_of(owner))

    def version_of(self, distribution: str) -> str:
        """Return the version of a distribution that ships plugins."""
        return next((r.version for r in self.records if r.distribution == distribution), "?")

    def identify(self, algorithm: object) -> Identity:
        """Return the name that others refer to an algorithm by, what ships it, and the record it is registered under.

        The name is its metadata's, else its entry point's, else its class's in snake case. The record is the nearest of
        those that lead to its class; if none does, as for a subclass named like its base, names decide.
        """
        cls, origin, metadata = type(algorithm), self.origin_of(algorithm), getattr(algorithm, "metadata", None)
        own = [r for r in self.records if r.kind == "algorithms" and r.origin == origin]
        # The class itself before names: two distributions may use one name for different classes.
        found = [r for r in own if _imported(r) is cls]
        if not found:
            found = [r for r in own if r.attribute in (cls.__qualname__, cls.__name__)]
        record = min(found, key=lambda record: _distance(record, cls), default=None)
        declared = metadata.name if isinstance(metadata, AlgorithmMetadata) else None
        return Identity(declared or (snake_case(cls.__name__) if record is None else record.name), origin, record)

    def algorithms_named(self, name: str) -> list[PluginRecord]:
        """Return the records of the algorithms that are registered under a name, whatever their status."""
        return [r for r in self.records if (r.kind, r.name) == ("algorithms", name)]

    def passes_of(self, distribution: str) -> list[PluginRecord]:
        """Return the records of a distribution's passes that are not disabled."""
        shipped = [r for r in self.records if (r.kind, r.distribution) == ("passes", distribution)]
        return [r for r in shipped if r.status != "disabled"]

    def _unknown(self, kind: Kind, name: str) -> str:
        known = [r.name for r in self.records if r.kind == kind]
        other_kinds = [r.kind for r in self.records if r.name == name]
        hint = f", but among the {other_kinds[0]}: give it there" if other_kinds else did_you_mean(name, known)
        return f"{name!r} is not among the installed {kind}{hint}"


def _key(record: PluginRecord) -> tuple[Kind, str]:
    return record.kind, record.qualified_name


def _imported(record: PluginRecord) -> object:
    """Return what a record's entry point leads to in already imported modules; none of their code runs."""
    found: object = sys.modules.get(record.module)
    for name in record.attribute.split("."):
        found = inspect.getattr_static(found, name, None)
    return found


def _distance(record: PluginRecord, cls: type) -> tuple[int, int]:
    """Return how far a record's module is from a class: how many bases up, then how many packages up."""
    module = f"{record.module}."
    inside = [place for place, base in enumerate(cls.__mro__) if f"{base.__module__}.".startswith(module)]
    return (inside[0] if inside else len(cls.__mro__)), -len(module)


def _refusal(record: PluginRecord) -> str:
    return f"{record.title} can't be loaded from {record.entry_point!r}: {record.reason}"
