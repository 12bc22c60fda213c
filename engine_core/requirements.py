"""What a run demands of its environment: distributions and their versions. A leaf; knows no registry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from .errors import PluginError

__all__ = ["check_requirements"]


def check_requirements(requirements: Iterable[str], installed: Mapping[str, str], disabled: Mapping[str, str]) -> None:
    """Check requirements such as `some-plugin>=1.2` against what there is.

    Args:
        installed: versions by distribution.
        disabled: why a distribution can't be used although it is installed, by distribution.

    Raises:
        PluginError: names the requirement and what is installed instead.

    Example:
        >>> check_requirements(["some-plugin>=1.2"], {"some-plugin": "1.10"}, {})
    """
    for text in requirements:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        name = canonicalize_name(requirement.name)
        if name not in installed:
            found = ", ".join(f"{other} {version}" for other, version in sorted(installed.items()))
            raise PluginError(
                f"{requirement} is required and no plugin of {name} is installed (installed: {found or 'none'}); "
                f"install it, as with: pip install '{requirement}'"
            )
        if name in disabled:
            raise PluginError(f"{requirement} is required, but {name} is disabled: {disabled[name]}")
        if not requirement.specifier.contains(installed[name], prereleases=True):
            raise PluginError(
                f"{requirement} is required, installed is {name} {installed[name]}; "
                f"change it, as with: pip install '{requirement}'"
            )
