"""Runs described by a YAML file: read it, check it, build what it names. No torch."""

from ..errors import ConfigError
from .building import bind, build, build_plugin, find_plugin, find_target, import_plugin, make_factory
from .parts import build_algorithms, build_listeners, build_passes, check_plugins
from .reading import Place, SourceFile
from .schema import Config, PluginEntry, Target, load_config, override

__all__ = [
    "Config",
    "ConfigError",
    "Place",
    "PluginEntry",
    "SourceFile",
    "Target",
    "bind",
    "build",
    "build_algorithms",
    "build_listeners",
    "build_passes",
    "build_plugin",
    "check_plugins",
    "find_plugin",
    "find_target",
    "import_plugin",
    "load_config",
    "make_factory",
    "override",
]
