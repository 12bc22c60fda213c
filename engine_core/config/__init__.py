"""Runs described by a YAML file: read it, check it, build what it names. No torch."""

from ..errors import ConfigError
from .building import bind, build, find_target, make_factory
from .parts import build_algorithms, build_listeners, build_passes, check_plugins
from .schema import Config, Target, load_config, override

__all__ = [
    "Config",
    "ConfigError",
    "Target",
    "bind",
    "build",
    "build_algorithms",
    "build_listeners",
    "build_passes",
    "check_plugins",
    "find_target",
    "load_config",
    "make_factory",
    "override",
]
