"""What a run or a plugin requires to be installed: distributions and their versions. Knows no registry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion

from ..errors import ArgumentError, ArgumentTypeError, PluginError, nearest
from .distributions import installed_version, normalise

_NEAR = 0.85  # plugin distributions often have the same ending


def check_requirements(
    requirements: Iterable[str],
    installed: Mapping[str, str],
    unusable: Mapping[str, str],
    shipped: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Check requirements such as `some-plugin>=1.2` against the installed plugins.

    Args:
        installed: versions of the distributions that ship plugins.
        unusable: why a distribution can't be used although it is installed, by distribution.
        shipped: which distribution ships a plugin, by the plugin's name, since the two are easily confused.

    Raises:
        PluginError: names the requirement and what is installed instead.
        ArgumentError: (a ValueError) for an invalid requirement.
    """
    if isinstance(requirements, str):
        raise ArgumentTypeError(f"requirements are a list; write [{requirements!r}]")
    for requirement in map(_parse, requirements):
        name = normalise(requirement.name)
        if requirement.url is not None:
            raise ArgumentError(
                f"'{requirement.name} @ {requirement.url}' has a URL, and where a distribution was installed from is "
                f"not checked; write a version instead, as '{requirement.name}>=1.2'"
            )
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        if name not in installed:
            raise PluginError(f"{requirement} is required{_why_missing(requirement, name, installed, shipped)}")
        if name in unusable:
            raise PluginError(f"{requirement} is required, but {name} {installed[name]} is {unusable[name]}")
        if not _meets(requirement, installed[name]):
            raise PluginError(
                f"{requirement} is required, but {name} {installed[name]} is installed; "
                f"run: pip install '{requirement}'"
            )


def unmet(requirements: Iterable[str]) -> list[tuple[str, str]]:
    """Return the unmet requirements, each with what is installed instead; skip those for extras and malformed ones."""
    found = []
    for text in requirements:
        try:
            requirement = _parse(text)
        except ArgumentError:
            continue
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        version = installed_version(requirement.name)
        requirement.marker = None
        if version is None:
            found.append((str(requirement), "not installed"))
        elif version != "?" and not _meets(requirement, version):
            found.append((str(requirement), f"not what is installed: {version}"))
    return found


def _parse(text: str) -> Requirement:
    try:
        return Requirement(text)
    except InvalidRequirement as error:
        why = str(error).partition("\n")[0]  # packaging adds a line with a caret under the place
        raise ArgumentError(f"{text!r} is not a requirement such as 'some-plugin>=1.2,<2': {why}") from None
    except TypeError:
        raise ArgumentTypeError(f"a requirement is a string such as 'some-plugin>=1.2,<2', not {text!r}") from None


def _why_missing(requirement: Requirement, name: str, installed: Mapping[str, str], shipped: Mapping[str, str]) -> str:
    version = installed_version(name)
    if version is not None:
        return (
            f", and {name} {version} is installed but ships no plugin; only distributions with plugins can be required"
        )
    found = ", ".join(f"{other} {version}" for other, version in sorted(installed.items()))
    missing = f" and no plugin of {name} is installed (installed: {found or 'none'}); "
    if name in shipped:
        return f"{missing}{requirement.name!r} is a plugin of {shipped[name]}; require that distribution"
    if near := nearest(name, installed, cutoff=_NEAR):
        return f"{missing}did you mean {near!r}?"
    return (
        f"{missing}install it: from engine-core's sources if it is part of them, else run: pip install '{requirement}'"
    )


def _meets(requirement: Requirement, version: str) -> bool:
    """Pre-releases compare as such; a version that can't be parsed meets only a bare name."""
    if not requirement.specifier:
        return True
    try:
        return requirement.specifier.contains(version, prereleases=True)
    except InvalidVersion:
        return False
