"""`engine-core picture`: the order of the algorithms as a picture. It finds the order as `engine-core explain` does."""

from __future__ import annotations

from typing import Any

import click

from engine_core.cli import explained, explaining
from engine_core.explain import format_unordered, printable

from ..pictures import to_mermaid, to_svg


@click.command(
    epilog="\b\nExamples:\n"
    "  engine-core picture run.yaml\n"
    "  engine-core picture runs/baseline --svg --event after_dataloader",
)
@explained
@click.option("--svg", is_flag=True, help="Print an SVG of how the order at --event comes about.")
def picture(event: str | None, svg: bool, **source: Any) -> None:
    """Draw in which order algorithms run at each event, as a Mermaid flowchart.

    Give a config, or the folder or manifest.json of a finished run, as to engine-core explain.
    """
    if svg and event is None:
        raise click.UsageError("--svg shows one event; say which with --event EVENT")
    with explaining(**source) as explanation:
        orders = {name: order for name, order in explanation.items() if event in (None, name)}
        unordered = {name: there for name, there in explanation.unordered.items() if event in (None, name)}
        if orders:
            drawn = to_svg(explanation, str(event)).rstrip() if svg else to_mermaid(orders)
            click.echo(printable(drawn))
        if unordered:
            click.echo(format_unordered(unordered), err=True)
        elif not orders:
            click.echo(f"no algorithm at {event or 'any event'}", err=True)
