"""Example runs that the core ships: each a config, and the model and data that it names."""

from __future__ import annotations

from pathlib import Path

from ..errors import ArgumentError, did_you_mean

__all__ = ["EXAMPLES", "find_example"]

EXAMPLES = ("digits",)


def find_example(name: str) -> Path:
    """Return the config file of an example.

    Raises:
        ArgumentError: (a ValueError) if there is none of that name.
    """
    if name not in EXAMPLES:
        raise ArgumentError(f"{name!r} is not an example{did_you_mean(name, EXAMPLES)}")
    return Path(__file__).parent / f"{name}.yaml"
