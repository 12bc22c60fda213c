"""Runs described by a YAML file: read it, check it, build what it names. No torch."""

from ..errors import ConfigError
from .building import bind, build, build_plugin, find_plugin, find_target, import_plugin, make_factory
from .overrides import contradicting
from .parts import build_algorithms, build_batches, build_listeners, build_passes, check_plugins
from .reading import Place, SourceFile
from .schema import Config, check_config, load_config, override
from .sections import ParallelSettings, PluginEntry, Target

__all__ = [
    "Config",
    "ConfigError",
    "ParallelSettings",
    "Place",
    "PluginEntry",
    "SourceFile",
    "Target",
    "bind",
    "build",
    "build_algorithms",
    "build_batches",
    "build_listeners",
    "build_passes",
    "build_plugin",
    "check_config",
    "check_plugins",
    "contradicting",
    "find_plugin",
    "find_target",
    "import_plugin",
    "load_config",
    "make_factory",
    "override",
]
