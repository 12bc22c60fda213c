"""In which order algorithms run at each event, and why: as plain data, for a config or for installed algorithms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .algorithm import Algorithm
from .config import Config, build_algorithms, build_passes
from .config.building import build_plugin
from .config.reading import Place, Source
from .config.schema import PluginEntry
from .engine import Engine
from .event import Event
from .logger import Logger
from .order import Explained, PassArgument
from .state import State

__all__ = ["explain_algorithms", "explain_config", "explain_installed", "format_orders"]


def explain_algorithms(
    algorithms: Sequence[Algorithm], algorithm_passes: PassArgument | None = None
) -> dict[str, list[Explained]]:
    """Return the order at each event that an algorithm lists, by the event's value.

    The order is as if every algorithm that lists the event matched.

    Example:
        >>> explain_algorithms([])
        {}
    """
    with Engine(State(algorithms=list(algorithms)), Logger(), algorithm_passes) as engine:
        orders = {event.value: engine.explain(event) for event in Event}
    return {event: order for event, order in orders.items() if order}


def explain_config(config: Config) -> dict[str, list[Explained]]:
    """Return the order at each event for the algorithms, passes and `order` of a config.

    Raises:
        ConfigError: if one of them can't be made. Model and data are not looked at.
    """
    algorithms = build_algorithms(config)
    return explain_algorithms(algorithms, build_passes(config, algorithms))


def explain_installed(names: Sequence[str]) -> dict[str, list[Explained]]:
    """Return the order at each event for installed algorithms, each made with its default arguments.

    Raises:
        ConfigError: if a name is unknown, or its algorithm can't be made without arguments.
    """
    return explain_algorithms(
        [build_plugin("algorithms", PluginEntry(name=name), Place(Source(name))) for name in names]
    )


def format_orders(orders: Mapping[str, Sequence[Explained]]) -> str:
    """Return a paragraph for each event: the algorithms in running order, each with the reason for its place."""
    paragraphs = []
    for event, order in orders.items():
        width = max(len(explained.algorithm) for explained in order)
        lines = [f"  {place}. {e.algorithm.ljust(width)}  {e.why}" for place, e in enumerate(order, start=1)]
        paragraphs.append("\n".join([event, *lines]))
    return "\n\n".join(paragraphs)
