"""Read the entry points of what is installed, whatever state its files are in. Alone in knowing importlib-metadata."""

from __future__ import annotations

import logging
import pathlib
import re
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import importlib_metadata

__all__ = ["EntryPoint", "import_object", "installed_entry_points", "normalise"]

Distribution: TypeAlias = Any
"""An `importlib_metadata.Distribution`; how that is typed differs from version to version."""

log = logging.getLogger("engine_core")


class EntryPoint(NamedTuple):
    """One line of a distribution's `entry_points.txt`."""

    group: str
    name: str
    value: str
    distribution: str
    version: str


def installed_entry_points(prefix: str) -> Iterator[EntryPoint]:
    """Yield the entry points in groups that start with `prefix`; nothing is imported.

    `importlib_metadata.entry_points()` fails as a whole where any one distribution holds nonsense, so each is read on
    its own. Of several with one name the first on the path counts, as for an import.
    """
    chosen: dict[str, Distribution] = {}
    for distribution in importlib_metadata.distributions():
        key = normalise(_folder_name(distribution))
        if key not in chosen or _field(chosen[key], "Name") is None:
            chosen[key] = distribution
    for key, distribution in chosen.items():
        try:
            text = distribution.read_text("entry_points.txt") or ""
        except (OSError, UnicodeDecodeError) as error:
            log.warning("the entry points of %s can't be read: %s", key, error)
            continue
        if prefix in text:
            name = normalise(_field(distribution, "Name") or key)
            version = _field(distribution, "Version") or "?"
            for group, entry, value in _parse(text):
                if group.startswith(prefix):
                    yield EntryPoint(group, entry, value, name, version)


def import_object(entry_point: EntryPoint) -> Any:
    """Import what an entry point names."""
    group, name, value, *_ = entry_point
    return importlib_metadata.EntryPoint(name=name, value=value, group=group).load()


def normalise(name: str) -> str:
    """Return the one spelling of a name: `My_Plugin`, `my.plugin` and `my-plugin` are the same distribution.

    Example:
        >>> normalise("My_Plugin")
        'my-plugin'
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def _parse(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield group, name and value of each line; what is no such line is passed over."""
    group = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            group = line[1:-1].strip()
        elif line and line[0] not in "#;":
            name, _, value = line.partition("=")
            yield group, name.strip(), value.strip()


def _folder_name(distribution: Distribution) -> str:
    """Return the name in that of the folder: it costs no reading, and is left where the metadata is lost."""
    path = getattr(distribution, "_path", None)  # not public; a provider of another kind may have none
    if path is None:
        return _field(distribution, "Name") or "unknown"
    return re.split(r"-|\.(?:dist|egg)-info", pathlib.PurePath(str(path)).name)[0]


def _field(distribution: Distribution, field: str) -> str | None:
    """Return a field of the metadata, or None; a stale dist-info may have lost the whole file."""
    try:
        value: str | None = distribution.metadata.get(field)
    except (OSError, UnicodeDecodeError, TypeError):
        return None
    return value
