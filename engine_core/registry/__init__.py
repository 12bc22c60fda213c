"""Which plugins are installed, which distribution ships them, and how to load them. Listing imports none."""

from .distributions import installed_distributions, installed_version, normalise
from .instances import as_plugins
from .loading import load_plugin
from .plugin_checks import LOGS, check_algorithm, check_callback, lacking, taken_for
from .records import CORE, PREFIX, Kind, Origin, PluginRecord, Source, title
from .registry import Registry
from .scan import read_records

__all__ = [
    "CORE",
    "LOGS",
    "PREFIX",
    "Kind",
    "Origin",
    "PluginRecord",
    "Registry",
    "Source",
    "as_plugins",
    "check_algorithm",
    "check_callback",
    "installed_distributions",
    "installed_version",
    "lacking",
    "load_plugin",
    "normalise",
    "read_records",
    "taken_for",
    "title",
]
