"""Which plugins are installed, which distribution ships them, and how to load them. Listing imports none."""

from .checks import check_plugin, load_plugin, missing_methods
from .installed import (
    CORE,
    Kind,
    Origin,
    PluginRecord,
    brought_by,
    display_name,
    installed_version,
    normalise,
    parse_requirement,
    required_by,
    unmet,
)
from .registry import Registry, as_plugins

__all__ = [
    "CORE",
    "Kind",
    "Origin",
    "PluginRecord",
    "Registry",
    "as_plugins",
    "brought_by",
    "check_plugin",
    "display_name",
    "installed_version",
    "load_plugin",
    "missing_methods",
    "normalise",
    "parse_requirement",
    "required_by",
    "unmet",
]
