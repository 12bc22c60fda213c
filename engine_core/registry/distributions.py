"""Read what is installed, however damaged. The only module that uses importlib-metadata; imports no plugin."""

from __future__ import annotations

import importlib.util
import itertools
import json
import logging
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import unquote, urlsplit

import importlib_metadata

OWN = Path(__file__).resolve().parents[1]
"""Where engine_core itself lies."""

Distribution: TypeAlias = Any
"""An `importlib_metadata.Distribution`, whose typing differs between versions."""

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
        other_name: the name in its metadata, if its folder has another.
        folder: its dist-info, if it lies in a folder.
        requires: its requirements, as `torch>=2.4`.
        origin: the URL of the folder that an editable install refers to.
        twins: all versions installed under this name in the same place, if several.
        entry_points: those of the requested groups.
    """

    name: str
    version: str
    other_name: str
    folder: Path | None
    requires: tuple[str, ...]
    origin: str
    twins: tuple[str, ...]
    entry_points: tuple[EntryPoint, ...]


def installed_distributions(prefix: str) -> Iterator[Installed]:
    """Yield the distributions with entry points in groups that start with `prefix`; nothing is imported.

    `importlib_metadata.entry_points()` fails entirely if any distribution is malformed, so each is read separately. If
    several have the same name, the first on the path counts, as for an import.
    """
    found: dict[str, dict[Path, Distribution]] = defaultdict(dict)
    for distribution in importlib_metadata.distributions():
        name = _folder_name(distribution)
        if not name.startswith("~"):  # left by an interrupted pip uninstall; pip ignores it too
            place = _folder(distribution) or Path(str(id(distribution)))
            found[normalise(name)].setdefault(place.resolve(), distribution)
    for key, places in found.items():
        candidates = list(places.values())
        whole = candidates if len(candidates) == 1 else [d for d in candidates if _is_whole(d, key)]
        if key == normalise(OWN.name):  # claiming the core's name is not enough
            whole = [d for d in whole if _lies_here(d)] or whole
        chosen = (whole or candidates)[0]
        entry_points = tuple(p for p in _entry_points(chosen, key) if normalise(p.group).startswith(normalise(prefix)))
        if entry_points:
            yield _describe(chosen, key, whole, entry_points)


def import_object(entry_point: EntryPoint) -> Any:
    """Import what an entry point names."""
    return importlib_metadata.EntryPoint(**entry_point._asdict()).load()


def installed_version(name: str) -> str | None:
    """Return the version of an installed distribution, plugin or not, or None."""
    try:
        return _field(importlib_metadata.distribution(name), "Version") or "?"
    except importlib_metadata.PackageNotFoundError:
        return None


def module_exists(name: str) -> bool:
    """Look for a module without importing anything: down to the first package that has code of its own."""
    path: list[str] | None = None
    for full in itertools.accumulate(name.split("."), "{}.{}".format):
        try:
            spec = importlib.util.find_spec(full) if path is None else PathFinder.find_spec(full, path)
        except Exception:  # noqa: BLE001  a third-party finder may raise anything; the import will show it
            return True
        if spec is None:
            return False
        path = spec.submodule_search_locations
        if path is None or spec.origin is not None:
            return True
    return False  # a folder without code, left by an uninstall


def ships(installed: Installed, module: str) -> bool | None:
    """Does a distribution's list of files contain a module? None: it has no such list.

    For an editable install, the folder that contains the module's package decides.
    """
    package = module.partition(".")[0]
    if installed.origin:
        place = _place_of(package)
        return place is not None and _folder_at(installed.origin) in place.resolve().parents
    if files := _listed(installed.folder, "RECORD"):
        path = module.replace(".", "/")
        return any(file.strip('"').startswith((f"{path}/", f"{path}.")) for file in files)
    packages = _listed(installed.folder, "top_level.txt")
    return package in map(str.strip, packages) if packages else None


def normalise(name: str) -> str:
    """Return a name's canonical spelling: `My_Plugin`, `my.plugin` and `my-plugin` are the same distribution."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _describe(
    chosen: Distribution, key: str, whole: list[Distribution], entry_points: tuple[EntryPoint, ...]
) -> Installed:
    """Describe the chosen one, with the versions of all those beside it."""
    folder = _folder(chosen)
    name, other_name = _names(chosen, key)
    beside = [d for d in whole if folder and (other := _folder(d)) and other.parent == folder.parent]
    versions = sorted(_field(d, "Version") or "?" for d in beside)
    return Installed(
        name=name,
        version=_field(chosen, "Version") or "?",
        other_name=other_name,
        folder=folder,
        requires=tuple(_fields(chosen, "Requires-Dist")),
        origin=_origin(chosen),
        twins=tuple(versions) if len(versions) > 1 else (),
        entry_points=entry_points,
    )


def _names(distribution: Distribution, key: str) -> tuple[str, str]:
    """Return the distribution's name, and the one in its metadata if its folder has another."""
    given, folder = _field(distribution, "Name"), _folder(distribution)
    if given is None or folder is None:
        return normalise(given or key), ""
    name, stem = normalise(given), normalise(re.sub(r"\.(?:dist|egg)-info$", "", folder.name))
    with_version = normalise(f"{given}-{_field(distribution, 'Version')}")
    agree = stem in (name, with_version) or re.match(re.escape(name) + r"-\d", stem) is not None
    if agree and (name == key or normalise(OWN.name) not in (name, key)):
        return name, ""
    return key, given


def _is_whole(distribution: Distribution, key: str) -> bool:
    return _field(distribution, "Name") is not None and not _names(distribution, key)[1]


def _lies_here(distribution: Distribution) -> bool:
    """Is it the distribution of the running engine_core?"""
    if origin := _origin(distribution):
        return _folder_at(origin) in OWN.parents
    folder = _folder(distribution)
    return folder is not None and folder.parent.resolve() == OWN.parent


def _entry_points(distribution: Distribution, key: str) -> Iterator[EntryPoint]:
    """Yield each valid line."""
    try:
        text = distribution.read_text("entry_points.txt") or ""
    except (OSError, UnicodeDecodeError) as error:
        log.warning("the entry points of %s can't be read: %s", key, error)
        return
    group = ""
    for line in map(str.strip, text.removeprefix("\ufeff").splitlines()):
        if line.startswith("[") and line.endswith("]"):
            group = line[1:-1].strip()
        elif line and line[0] not in "#;":
            name, _, value = line.partition("=")
            value = re.sub(r"\s*\[[^\]]*\]$", "", value.strip())  # extras, which importlib ignores too
            yield EntryPoint(group, name.strip(), re.sub(r"\s*:\s*", ":", value))


def _folder(distribution: Distribution) -> Path | None:
    """Return the dist-info folder; other kinds of providers may have none."""
    path = getattr(distribution, "_path", None)  # not public
    return None if path is None else Path(str(path))


def _listed(folder: Path | None, name: str) -> list[str]:
    """Return the lines of a list file in a dist-info, each up to a comma."""
    try:
        text = "" if folder is None else (folder / name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return []
    return [line.partition(",")[0] for line in text.splitlines()]


def _place_of(package: str) -> Path | None:
    """Return where a package lies, without importing it."""
    try:
        spec = importlib.util.find_spec(package)
    except Exception:  # noqa: BLE001  a third-party finder may raise anything
        return None
    places = [] if spec is None else [spec.origin or "", *(spec.submodule_search_locations or ())]
    return next((Path(place) for place in places if place), None)


def _folder_name(distribution: Distribution) -> str:
    """Return the name in the folder's name: no file is read, and it survives the loss of the metadata."""
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


def _folder_at(url: str) -> Path:
    path = unquote(urlsplit(url).path)
    return Path(re.sub(r"^/(?=[A-Za-z]:)", "", path)).resolve()  # Windows: /C:/folder


def _field(distribution: Distribution, field: str) -> str | None:
    return next(iter(_fields(distribution, field)), None)


def _fields(distribution: Distribution, field: str) -> list[str]:
    """Return all values of a metadata field; a stale dist-info may have lost the whole file."""
    try:
        return [str(value) for value in distribution.metadata.get_all(field) or ()]
    except (OSError, UnicodeDecodeError, TypeError, AttributeError):
        return []
