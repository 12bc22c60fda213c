"""Read what is installed, whatever state its files are in. Alone in knowing importlib-metadata; imports no plugin."""

from __future__ import annotations

import importlib.util
import json
import logging
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import importlib_metadata

__all__ = [
    "EntryPoint",
    "Installed",
    "import_object",
    "installed_distributions",
    "installed_version",
    "module_exists",
    "normalise",
]

Distribution: TypeAlias = Any
"""An `importlib_metadata.Distribution`; how that is typed differs from version to version."""

log = logging.getLogger("engine_core")


class EntryPoint(NamedTuple):
    """One line of a distribution's `entry_points.txt`."""

    group: str
    name: str
    value: str


@dataclass(frozen=True)
class Installed:
    """An installed distribution as its dist-info folder describes it.

    Args:
        version: `?` where the metadata is lost.
        folder: its dist-info, if it lies in a folder.
        has_record: does it list its files, so that pip can take them away?
        requires: its requirements, as `torch>=2.4`.
        origin: the URL of the folder that an editable install refers to.
        twins: the versions of all that lie under this name in the same place, if there are several.
        entry_points: those of the groups that were asked for.
    """

    name: str
    version: str
    folder: Path | None
    has_record: bool
    requires: tuple[str, ...]
    origin: str
    twins: tuple[str, ...]
    entry_points: tuple[EntryPoint, ...]


def installed_distributions(prefix: str) -> Iterator[Installed]:
    """Yield the distributions with entry points in groups that start with `prefix`; nothing is imported.

    `importlib_metadata.entry_points()` fails as a whole where any one distribution holds nonsense, so each is read on
    its own. Of several with one name the first on the path counts, as for an import.
    """
    found: dict[str, dict[Path, Distribution]] = defaultdict(dict)
    for distribution in importlib_metadata.distributions():
        name = _folder_name(distribution)
        if not name.startswith("~"):  # what pip leaves of a removal that was interrupted, and ignores itself
            place = _folder(distribution) or Path(str(id(distribution)))
            found[normalise(name)].setdefault(place.resolve(), distribution)
    for key, places in found.items():
        candidates = list(places.values())
        whole = candidates if len(candidates) == 1 else [d for d in candidates if _field(d, "Name") is not None]
        chosen = (whole or candidates)[0]
        entry_points = tuple(point for point in _entry_points(chosen, key) if point.group.startswith(prefix))
        if entry_points:
            yield _describe(chosen, key, whole, entry_points)


def import_object(entry_point: EntryPoint) -> Any:
    """Import what an entry point names."""
    group, name, value = entry_point
    return importlib_metadata.EntryPoint(name=name, value=value, group=group).load()


def installed_version(name: str) -> str | None:
    """Return the version of an installed distribution, plugin or not, or None."""
    try:
        return _field(importlib_metadata.distribution(name), "Version") or "?"
    except importlib_metadata.PackageNotFoundError:
        return None


def module_exists(name: str) -> bool:
    """Look for a module without importing anything: down to the first package that has code of its own.

    Example:
        >>> module_exists("engine_core.none_such"), module_exists("none_such.engine_core")
        (True, False)
    """
    path = None
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        full = ".".join(parts[:depth])
        try:
            spec: ModuleSpec | None = (
                importlib.util.find_spec(full) if path is None else PathFinder.find_spec(full, path)
            )
        except Exception:  # noqa: BLE001  a finder of somebody else's may raise anything; an import will tell
            return True
        if spec is None:
            return False
        path = spec.submodule_search_locations
        if path is None or spec.origin is not None:
            return True
    return False  # a folder without code, as a removal leaves it behind


def normalise(name: str) -> str:
    """Return the one spelling of a name: `My_Plugin`, `my.plugin` and `my-plugin` are the same distribution.

    Example:
        >>> normalise("My_Plugin")
        'my-plugin'
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def _describe(
    chosen: Distribution, key: str, whole: list[Distribution], entry_points: tuple[EntryPoint, ...]
) -> Installed:
    """Put together what is asked for, with the versions of all that lie beside the chosen one."""
    folder = _folder(chosen)
    versions = sorted(_field(d, "Version") or "?" for d in whole if folder and _parent(d) == folder.parent)
    return Installed(
        name=normalise(_field(chosen, "Name") or key),
        version=_field(chosen, "Version") or "?",
        folder=folder,
        has_record=folder is not None and (folder / "RECORD").exists(),
        requires=tuple(_fields(chosen, "Requires-Dist")),
        origin=_origin(chosen),
        twins=tuple(versions) if len(versions) > 1 else (),
        entry_points=entry_points,
    )


def _entry_points(distribution: Distribution, key: str) -> Iterator[EntryPoint]:
    """Yield each line; what is none is passed over."""
    try:
        text = distribution.read_text("entry_points.txt") or ""
    except (OSError, UnicodeDecodeError) as error:
        log.warning("the entry points of %s can't be read: %s", key, error)
        return
    group = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            group = line[1:-1].strip()
        elif line and line[0] not in "#;":
            name, _, value = line.partition("=")
            yield EntryPoint(group, name.strip(), value.strip())


def _folder(distribution: Distribution) -> Path | None:
    """Return the dist-info folder; a provider of another kind may have none."""
    path = getattr(distribution, "_path", None)  # not public
    return None if path is None else Path(str(path))


def _parent(distribution: Distribution) -> Path | None:
    folder = _folder(distribution)
    return None if folder is None else folder.parent


def _folder_name(distribution: Distribution) -> str:
    """Return the name in that of the folder: it costs no reading, and is left where the metadata is lost."""
    folder = _folder(distribution)
    if folder is None:
        return _field(distribution, "Name") or "unknown"
    return re.split(r"-|\.(?:dist|egg)-info", folder.name)[0]


def _origin(distribution: Distribution) -> str:
    """Return the URL of the folder that an editable install refers to, or nothing."""
    try:
        direct_url = json.loads(distribution.read_text("direct_url.json") or "{}")
        return str(direct_url["url"]) if direct_url["dir_info"].get("editable") else ""
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return ""


def _field(distribution: Distribution, field: str) -> str | None:
    """Return a field of the metadata, or None."""
    return next(iter(_fields(distribution, field)), None)


def _fields(distribution: Distribution, field: str) -> list[str]:
    """Return all values of a field of the metadata; a stale dist-info may have lost the whole file."""
    try:
        return [str(value) for value in distribution.metadata.get_all(field) or ()]
    except (OSError, UnicodeDecodeError, TypeError, AttributeError):
        return []
