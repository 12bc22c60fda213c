"""`engine-core picture`: the order of the algorithms as a picture. It finds the order as `engine-core explain` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import click

from engine_core.explain import Explanation
from engine_core.passes import Explained
from engine_core.registry import Registry

from ..pictures import to_mermaid, to_svg

_EXPLAIN = cast("click.Command", Registry.scan().load("commands", "explain"))


@click.command(
    params=[each for each in _EXPLAIN.params if each.name in ("what", "by_name", "overrides", "event")],
    epilog="\b\nExamples:\n"
    "  engine-core picture run.yaml\n"
    "  engine-core picture runs/baseline --svg --event after_dataloader",
)
@click.option("--svg", is_flag=True, help="Print an SVG of how the order at --event comes about.")
def picture(event: str | None, svg: bool, **source: Any) -> None:
    """Draw in which order algorithms run at each event, as a Mermaid flowchart.

    Give a config, or the folder or manifest.json of a finished run, as to engine-core explain.
    """
    if svg and event is None:
        raise click.UsageError("--svg shows one event; say which with --event EVENT")
    click.get_current_context().invoke(_EXPLAIN, event=event, draw=_as_svg if svg else _as_mermaid, **source)


def _as_svg(explanation: Explanation, orders: Mapping[str, Sequence[Explained]]) -> str:
    (event,) = orders
    return to_svg(explanation, event).rstrip()


def _as_mermaid(_: Explanation, orders: Mapping[str, Sequence[Explained]]) -> str:
    return to_mermaid(orders)
