"""Runs described by a YAML file: read it, check it, build what it names. No torch."""

from ..errors import ConfigError
from .building import (
    bind,
    build,
    build_algorithms,
    build_batches,
    build_listeners,
    build_passes,
    build_plugin,
    check_plugins,
    find_plugin,
    find_target,
    import_plugin,
    make_factory,
)
from .reading import Place, SourceFile, read_yaml
from .recipes import Recipe, load_config, read_recipe
from .schema import (
    Config,
    ParallelSettings,
    PluginEntry,
    Section,
    Target,
    check_config,
    override,
    validated,
)

__all__ = [
    "Config",
    "ConfigError",
    "ParallelSettings",
    "Place",
    "PluginEntry",
    "Recipe",
    "Section",
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
    "find_plugin",
    "find_target",
    "import_plugin",
    "load_config",
    "make_factory",
    "override",
    "read_recipe",
    "read_yaml",
    "validated",
]
