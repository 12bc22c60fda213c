"""What a run demands of its environment: plugin distributions and their versions, checked before any import."""

from __future__ import annotations

from collections.abc import Iterable

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from .errors import PluginError
from .registry import PluginRecord, Registry

__all__ = ["require_plugins"]


def require_plugins(requirements: Iterable[str], registry: Registry | None = None) -> None:
    """Check that distributions with plugins are installed and enabled, as in `some-plugin>=1.2`.

    Raises:
        PluginError: names the requirement and what is installed instead.

    Example:
        >>> require_plugins(["engine-core"])
    """
    records = (registry or Registry.scan()).records
    for text in requirements:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate():
            _require(requirement, records)


def _require(requirement: Requirement, records: Iterable[PluginRecord]) -> None:
    installed = {record.distribution: record.version for record in records}
    name = canonicalize_name(requirement.name)
    if name not in installed:
        found = ", ".join(f"{other} {version}" for other, version in sorted(installed.items()))
        raise PluginError(
            f"{requirement} is required and no plugin of {name} is installed (installed: {found or 'none'}); "
            f"install it, as with: pip install '{requirement}'"
        )
    own = [record for record in records if record.distribution == name]
    if all(record.status == "disabled" for record in own):
        raise PluginError(f"{requirement} is required, but {name} is disabled: {own[0].reason}")
    if not requirement.specifier.contains(installed[name], prereleases=True):
        raise PluginError(
            f"{requirement} is required, installed is {name} {installed[name]}; "
            f"change it, as with: pip install '{requirement}'"
        )
