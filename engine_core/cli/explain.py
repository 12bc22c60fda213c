"""`engine-core explain`: the order of the algorithms, see `engine_core.explain`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from ..config import load_config
from ..event import Event
from ..explain import explain_config, explain_installed, format_orders
from .importing import import_beside

__all__ = ["explain"]


@click.command()
@click.argument("what", nargs=-1, required=True, metavar="CONFIG | --algorithms NAME...")
@click.option("--algorithms", "by_name", is_flag=True, help="Explain installed algorithms by name, in this order.")
@click.option("--event", metavar="EVENT", help="Show this event only.")
@click.option("--json", "as_json", is_flag=True, help="Print events with lists of {algorithm, name, why}.")
def explain(what: Sequence[str], by_name: bool, event: str | None, as_json: bool) -> None:
    """Show in which order algorithms run at each event, and why.

    The order is as if every algorithm that lists an event matched there.
    """
    wanted = None if event is None else _event(event)
    if not by_name and len(what) > 1:
        raise click.UsageError(f"give one CONFIG, or --algorithms before names: --algorithms {' '.join(what)}")
    if by_name and what[0].endswith((".yaml", ".yml")):
        raise click.UsageError("give either a CONFIG or --algorithms NAME..., not both")
    if by_name:
        orders = explain_installed(what)
    else:
        import_beside(Path(what[0]))
        orders = explain_config(load_config(what[0]))
    shown = {name: order for name, order in orders.items() if wanted in (None, name)}
    if as_json:
        click.echo(json.dumps({name: [a._asdict() for a in order] for name, order in shown.items()}, indent=2))
    else:
        click.echo(format_orders(shown) or f"no algorithm at {wanted or 'any event'}")


def _event(name: str) -> str:
    try:
        return Event(name).value
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="'--event'") from None
