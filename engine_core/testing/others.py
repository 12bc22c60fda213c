"""Instances of the installed algorithms, to test a plugin alongside them."""

from __future__ import annotations

import warnings
from typing import Any

from ..errors import PluginError
from ..registry import Registry


def installed_algorithms() -> list[Any]:
    """Return one of each installed algorithm that can be imported and made without arguments."""
    registry = Registry.scan()
    made = []
    for record in registry.records:
        if record.kind != "algorithms" or record.status in ("disabled", "broken"):
            continue
        try:
            algorithm = registry.load("algorithms", record.qualified_name)
        except PluginError:  # the test of one plugin does not need the others to work
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                made.append(algorithm())
            except (TypeError, ValueError):  # it needs arguments
                continue
    return made
