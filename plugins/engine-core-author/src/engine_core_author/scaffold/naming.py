"""The names of a new plugin, and why some are refused. Looks at what is installed, imports none of it."""

from __future__ import annotations

import builtins
import keyword
import re
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import NamedTuple

from engine_core.errors import ArgumentError, ArgumentTypeError
from engine_core.registry import CORE, Registry, installed_version, normalise

LONGEST = 40

STANDARD_ELSEWHERE = (
    "aifc annotationlib asynchat asyncore audioop binhex cgi cgitb chunk compression crypt distutils imghdr imp "
    "lib2to3 mailcap msilib nis nntplib ossaudiodev pipes smtpd sndhdr spwd sunau telnetlib test tomllib uu xdrlib"
)
"""Standard in one of Python 3.10 to 3.14, but perhaps not in this one; none lists `test` among its modules."""

AT_EVERY_START = ("sitecustomize", "usercustomize")
"""What Python imports at every start, if it exists."""

TOOLS = "build hatchling mypy pip py pytest ruff setuptools torch tox virtualenv wheel"
"""What a plugin's tests install under these names, whether installed here or not; `py` belongs to pytest."""

SUFFIX = re.compile(r"(?<=.)[-_.]+plugin$", re.IGNORECASE)
"""What the name of a distribution may end with, and that of its algorithm does not."""

DEVICES = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\.|$)", re.IGNORECASE)

IN_THE_FILES = (
    "Algorithm AlgorithmConformance AlgorithmMetadata AlgorithmPass Any ArgumentError ClassVar Engine EngineError "
    "Event Iterable Logger Mapping OwnGenerator PassConformance Sequence State Trainer"
)
"""Names that a plugin's files import, so its class needs another."""


class PluginNames(NamedTuple):
    """What follows from a plugin's name: its distribution, its package, its algorithm's registered name and class."""

    distribution: str
    package: str
    algorithm: str
    class_name: str


def name_plugin(name: str, algorithm: str | None = None) -> PluginNames:
    """Return the names that follow from the name of a distribution, and from that of its algorithm if it is given.

    Raises:
        ArgumentError: if no plugin can have that name, or none that works alongside what is installed.
        ArgumentTypeError: for anything but a string.

    Example:
        >>> name_plugin("Sam2.plugin")
        PluginNames(distribution='Sam2.plugin', package='sam2_plugin', algorithm='sam2', class_name='Sam2')
    """
    for what, given in (("a plugin", name), ("an algorithm", algorithm or "")):
        if not isinstance(given, str):
            raise ArgumentTypeError(f"the name of {what} is a string, not {given!r}")
    package = _as_identifier(name)
    stem = SUFFIX.sub("", name) if algorithm is None else algorithm
    registered = _as_identifier(stem) if algorithm is None else algorithm
    reason = _why_not_a_name(name, package) or _why_not_a_package(package) or _why_not_beside_others(name, package)
    if not reason and algorithm is None and (taken := _why_taken(registered)):
        reason = f"{taken}; choose another, or name its algorithm with --algorithm"
    if reason:
        raise ArgumentError(f"{name!r} can't be the name of a plugin: {reason}")
    if reason := _why_not_an_algorithm(registered) or _why_taken(registered):
        raise ArgumentError(f"{registered!r} can't be the name of an algorithm: {reason}")
    return PluginNames(name, package, registered, _class_name(stem))


def _as_identifier(name: str) -> str:
    return re.sub(r"[-.]", "_", name).lower()


def _why_not_a_name(name: str, package: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?", name):
        return (
            "the name of a distribution has ASCII letters, digits, '-', '_' and '.', and begins and ends with a "
            "letter or digit"
        )
    if not package.isidentifier():
        return f"its package would be {package!r}, which is not an identifier; begin with a letter"
    if len(name) > LONGEST:
        return f"it has {len(name)} characters, at most {LONGEST} fit in a line of code"
    return "Windows reserves that name for a device" if DEVICES.match(name) else ""


def _why_not_a_package(package: str) -> str:
    taken = {
        "a keyword of Python": keyword.kwlist,
        "a module of the standard library": {*sys.stdlib_module_names, *STANDARD_ELSEWHERE.split()},
        "which Python imports at every start": AT_EVERY_START,
        "which its own tests install": TOOLS.split(),
    }
    return next((f"its package would be {package!r}, {what}" for what, names in taken.items() if package in names), "")


def _why_not_beside_others(name: str, package: str) -> str:
    distribution = normalise(name)
    if distribution == CORE:
        return "that is the engine itself"
    version = installed_version(name)
    if version is not None:
        return f"{distribution} {version} is installed, and this would replace it; choose another, or uninstall that"
    found = _importable(package)
    return f"its package would be {package!r}, which is already importable: {found}" if found else ""


def _why_not_an_algorithm(name: str) -> str:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        legal = re.sub(r"\W+|(?<=[a-z0-9])(?=[A-Z])", "_", name, flags=re.ASCII).strip("_").lower()
        instead = f", as in {legal!r}" if re.match("[a-z]", legal) else ""
        return f"that has lower-case ASCII letters, digits and '_', and begins with a letter{instead}"
    if len(name) > LONGEST:
        return f"it has {len(name)} characters, at most {LONGEST} fit in a line of code"
    return ""


def _why_taken(algorithm: str) -> str:
    for record in Registry.scan().records:
        if record.name == algorithm and record.distribution == CORE:
            return f"engine-core has a plugin {algorithm!r} of its own"
        if record.name == algorithm and record.kind == "algorithms":
            return (
                f"{record.origin}, which is installed, has an algorithm {algorithm!r}, and with both that name would "
                "be ambiguous"
            )
    return ""


def _importable(package: str) -> str:
    """Return where an importable module is, except in the current folder; nothing is imported."""
    here = Path.cwd()
    path = [entry for entry in sys.path if entry and Path(entry).absolute() != here]
    spec = PathFinder.find_spec(package, path)
    if spec is None:
        return ""
    return spec.origin or next(iter(spec.submodule_search_locations or ()), "?")


def _class_name(name: str) -> str:
    """Return the name in CamelCase, with `Plugin` before it if it is taken.

    pytest takes a class for a test if its name begins with `Test`, wherever it was imported from.
    """
    camel = "".join(part[:1].upper() + part[1:] for part in re.split(r"[-_.]+", name))
    taken = camel in IN_THE_FILES.split() or hasattr(builtins, camel) or camel.startswith("Test")
    return f"Plugin{camel}" if taken else camel
