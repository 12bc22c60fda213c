"""Read what is installed, each distribution in a try of its own, as records. No plugin runs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import importlib_metadata
from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion

from ..errors import ArgumentError, ArgumentTypeError

Kind = Literal["algorithms", "passes", "callbacks", "loops", "commands", "recipes"]
Status = Literal["available", "disabled", "ambiguous", "broken"]
KINDS: tuple[Kind, ...] = ("algorithms", "passes", "callbacks", "loops", "commands", "recipes")
CORE, PREFIX = "engine-core", "engine_core."
ALLOW, DENY = "ENGINE_CORE_PLUGINS", "ENGINE_CORE_DISABLE_PLUGINS"


class Origin(NamedTuple):
    """The distribution that ships something, and its version; as text, `some-plugin 1.2`."""

    distribution: str
    version: str

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"

    @classmethod
    def of(cls, distribution: str | None, version: str | None) -> Origin | None:
        """Return what was saved as two values; None: the user's own."""
        return cls(distribution, version or "?") if distribution else None


def display_name(name: str, origin: Origin | None) -> str:
    """Return a name with its origin as messages show it, `Crop (some-plugin 1.2)`; None: the user's own."""
    return name if origin is None else f"{name} ({origin})"


@dataclass(frozen=True)
class PluginRecord:
    """One entry point: its name, its distribution, and whether it can be used.

    Args:
        kind: `algorithms`, `passes`, `callbacks`, `loops`, which say what a training loop offers, `commands`, or
            `recipes`, which are paths of files.
        name: the entry point's name, which is also the plugin's.
        distribution, version: what ships it.
        entry_point: its value, `module:attribute`.
        status: `available`; `disabled` by the environment; `ambiguous`: others claim the bare name too;
            `broken`: it can't be loaded, as metadata or an attempt showed.
        reason: why it is not simply available, and what to do.
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
        """The distribution and the name with a colon between them, which no other distribution can claim."""
        return f"{self.distribution}:{self.name}"

    @property
    def module(self) -> str:
        """The module that the entry point names."""
        return self.entry_point.partition(":")[0]

    @property
    def attribute(self) -> str:
        """What the entry point names in its module, dotted if it is inside a class."""
        return self.entry_point.partition(":")[2]

    @property
    def origin(self) -> Origin:
        """The distribution that ships it."""
        return Origin(self.distribution, self.version)

    @property
    def title(self) -> str:
        """The kind, name, distribution and version, as messages show them."""
        singular = "pass" if self.kind == "passes" else self.kind[:-1]
        return f"{singular} {self.name!r} of {self.origin}"


_OURS = re.compile(r"engine[-_.]?core[-_.]", re.IGNORECASE)  # also where authors misspelt it

EXTRAS = "extras_of_engine_core"
"""The group of our own entry points that say which extra brings what: `kind.name` and the extra."""


class Installed(NamedTuple):
    """A distribution with entry points in our groups.

    Args:
        version: `?` where its metadata is damaged.
        entry_points: each as group, name and `module:attribute`.
        damage: why nothing of it can be trusted, with the remedy, or nothing.
    """

    name: str
    version: str
    entry_points: tuple[tuple[str, str, str], ...]
    damage: str = ""


def installed_distributions() -> tuple[list[Installed], list[str]]:
    """Return the distributions with entry points in our groups, and what could not be read.

    `importlib_metadata.entry_points()` fails entirely if any distribution is damaged. If several have the same name,
    the first on the path counts, as for an import; in one folder, nothing tells which one an import would find.
    """
    found: dict[str, Installed] = {}
    folders: dict[str, Path] = {}
    unreadable = []
    for distribution in importlib_metadata.distributions():
        folder = Path(str(getattr(distribution, "_path", "?")))  # not public
        try:
            entry_points = _entry_points(distribution)
        except Exception as error:  # noqa: BLE001  whatever is in that file
            file = folder / "entry_points.txt"
            unreadable.append(f"{file} can't be read ({error}); install it again, or report it to its authors")
            continue
        if not entry_points or folder.name.startswith("~"):  # left by an interrupted pip uninstall; pip ignores it too
            continue
        installed = _describe(distribution, folder, entry_points)
        first = folders.setdefault(installed.name, folder)
        if first is folder:
            found[installed.name] = installed
        elif first != folder and first.parent == folder.parent:
            damage = (
                f"{' and '.join(sorted((first.name, folder.name)))} lie side by side in {folder.parent}, and it is "
                f"unclear which of them owns the modules; run `pip uninstall {installed.name}` until none is left, "
                "then install one"
            )
            found[installed.name] = found[installed.name]._replace(damage=damage)
    return list(found.values()), unreadable


def installed_version(name: str) -> str | None:
    """Return the version of an installed distribution, plugin or not; None also where its metadata is damaged."""
    try:
        return importlib_metadata.version(name)
    except Exception:  # noqa: BLE001  what a damaged one raises differs between versions
        return None


def required_by(name: str) -> list[str]:
    """Return what an installed distribution requires, as `torch>=2.4`."""
    try:
        return importlib_metadata.requires(name) or []
    except Exception:  # noqa: BLE001  likewise
        return []


def brought_by(kind: str, name: str) -> str:
    """Return the words that say which extra of engine-core brings a plugin that is not installed, or nothing."""
    try:
        found = importlib_metadata.distribution(CORE).entry_points.select(group=EXTRAS, name=f"{kind}.{name}")
    except Exception:  # noqa: BLE001  likewise
        return ""
    return "".join(f'; pip install "{CORE}[{extra.value}]" brings it' for extra in found)


def ships(name: str, module: str) -> bool:
    """Is a module among the files that an installed distribution lists?"""
    try:
        files = importlib_metadata.files(name) or []
    except Exception:  # noqa: BLE001  likewise
        return False
    path = module.replace(".", "/")
    return any(str(file).startswith((f"{path}/", f"{path}.")) for file in files)


def unmet(name: str) -> list[tuple[str, str]]:
    """Return what a distribution requires and does not have, without its extras, each with what is there instead."""
    found = []
    for text in required_by(name):
        try:
            requirement = Requirement(text)
        except InvalidRequirement:  # its authors' slip; pip passes over it too
            continue
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        version = installed_version(requirement.name)
        requirement.marker = None
        if version is None:
            found.append((str(requirement), "not installed"))
        elif not meets(requirement, version):
            found.append((str(requirement), f"not what is installed: {version}"))
    return found


def meets(requirement: Requirement, version: str) -> bool:
    """Does a version meet a requirement? One that can't be parsed meets only a bare name."""
    try:
        return requirement.specifier.contains(version, prereleases=True)
    except InvalidVersion:
        return not requirement.specifier


def parse_requirement(text: str) -> Requirement:
    """Return a requirement such as `some-plugin>=1.2`, or raise an ArgumentError in one line."""
    try:
        return Requirement(text)
    except InvalidRequirement as error:
        why = str(error).partition("\n")[0]  # packaging adds a line with a caret under the place
        raise ArgumentError(f"{text!r} is not a requirement such as 'some-plugin>=1.2,<2': {why}") from None
    except TypeError:
        raise ArgumentTypeError(f"a requirement is a string such as 'some-plugin>=1.2,<2', not {text!r}") from None


def normalise(name: str) -> str:
    """Return a name's canonical spelling: `My_Plugin`, `my.plugin` and `my-plugin` are the same distribution."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _entry_points(distribution: Any) -> tuple[tuple[str, str, str], ...]:
    """Return those in our groups; the text is looked at first, since parsing it takes longer than reading it."""
    if not _OURS.search(distribution.read_text("entry_points.txt") or ""):
        return ()
    ours = [point for point in distribution.entry_points if _OURS.match(point.group)]
    return tuple((p.group, p.name, p.value.partition("[")[0].replace(" ", "")) for p in ours)  # without extras


def _describe(distribution: Any, folder: Path, entry_points: tuple[tuple[str, str, str], ...]) -> Installed:
    try:
        name, version = (distribution.metadata.get(field) for field in ("Name", "Version"))
    except Exception:  # noqa: BLE001  what it raises differs between versions
        name = version = None
    if name and version:
        return Installed(normalise(name), version, entry_points)
    name = re.split(r"-|\.(?:dist|egg)-info", folder.name)[0]
    lost = f"{folder} has lost its METADATA; delete that folder, and install the distribution again"
    return Installed(normalise(name), "?", entry_points, lost)
