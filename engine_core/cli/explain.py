"""`engine-core explain`: the order of the algorithms, see `engine_core.explain`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..explain import (
    Explanation,
    find_algorithm,
    format_orders,
    format_pair,
    format_skipped,
    format_unordered,
    printable,
    why,
)
from ..passes import Explained
from .groups import explained, explaining


@click.command(
    epilog="\b\nExamples:\n"
    "  engine-core explain run.yaml --event after_dataloader\n"
    "  engine-core explain run.yaml --set algorithms+=flip\n"
    "  engine-core explain --algorithms flip crop --why flip crop\n"
    "  engine-core explain run.yaml --loop fsdp\n"
    "  engine-core explain runs/baseline --skipped"
)
@explained
@click.option("--loop", metavar="LOOP", help="List what this training loop refuses, such as fsdp, and why.")
@click.option("--why", "pair", nargs=2, metavar="A B", help="Explain which of two algorithms runs first, and why.")
@click.option("--skipped", is_flag=True, help="Show only what doesn't affect the order, and why.")
@click.option("--json", "as_json", is_flag=True, help="Print events with lists of {algorithm, name, why, ...}.")
def explain(event: str | None, pair: tuple[str, str] | None, skipped: bool, as_json: bool, **source: Any) -> None:
    """Show in which order algorithms run at each event, and why.

    Give a config, or the folder or manifest.json of a finished run. A run is explained from what it recorded, so its
    plugins need not be installed. The order assumes that every algorithm that lists an event matches there.

    Algorithms that can't run together, or in the --loop given, are explained too, but the problems are listed and the
    exit code is 2.
    """
    if pair is not None and skipped:
        raise click.UsageError("give either --why A B or --skipped, not both")
    with explaining(**source) as explanation:
        if pair is not None:
            _show_pair(explanation, pair, event, as_json=as_json)
        elif skipped:
            _show_skipped(explanation, event, as_json=as_json)
        else:
            _show_orders(explanation, event, as_json=as_json)


def _show_orders(explanation: Explanation, wanted: str | None, *, as_json: bool) -> None:
    shown = {name: order for name, order in explanation.items() if wanted in (None, name)}
    unordered = {name: there for name, there in explanation.unordered.items() if wanted in (None, name)}
    if as_json:
        click.echo(_as_json({name: told for name, told in explanation.records().items() if wanted in (None, name)}))
        return
    if not shown and not unordered:
        click.echo(f"no algorithm at {wanted or 'any event'}")
        return
    _show(shown)
    if unordered:
        separator = "\n" if shown else ""
        click.echo(f"{separator}{format_unordered(unordered)}")
    if skipped := [s for s in explanation.skipped if wanted is None or wanted in s.events]:
        click.echo(f"\n{format_skipped(skipped)}")


def _show(orders: Mapping[str, Sequence[Explained]]) -> None:
    """Print a table for each event with several algorithms on a terminal, plain lines elsewhere."""
    if orders and not sys.stdout.isatty():
        click.echo(format_orders(orders))
        return
    for event, order in orders.items():
        if len(order) == 1:
            click.echo(format_orders({event: order}))
            continue
        table = Table("#", "algorithm", "from", "why", title=escape(printable(event)), title_justify="left")
        for place, each in enumerate(order, start=1):
            cells = (str(place), each.algorithm, str(each.origin or "you"), each.why)
            table.add_row(*(escape(printable(cell)) for cell in cells))
        Console().print(table)


def _show_pair(explanation: Explanation, pair: tuple[str, str], wanted: str | None, *, as_json: bool) -> None:
    one, other = (find_algorithm(explanation, name) for name in pair)
    if one == other:
        raise click.BadParameter(f"{pair[0]!r} and {pair[1]!r} are the same algorithm", param_hint="'--why'")
    there = {name: set(derivation.members) for name, derivation in explanation.derivations.items()}
    there |= {name: {m.algorithm for m in event.members} for name, event in explanation.unordered.items()}
    events = [wanted] if wanted else [name for name, members in there.items() if {one, other} <= members]
    reasons = [why(explanation, one, other, event) for event in events]
    if as_json:
        found = [{"why": reason} if isinstance(reason, str) else asdict(reason) for reason in reasons]
        click.echo(_as_json([{"event": e, **content} for e, content in zip(events, found, strict=True)]))
    elif reasons:
        click.echo("\n\n".join(map(format_pair, reasons)))
    else:
        click.echo(printable(f"{one} and {other} have no event in common"))


def _show_skipped(explanation: Explanation, wanted: str | None, *, as_json: bool) -> None:
    skipped = [s for s in explanation.skipped if wanted is None or wanted in s.events]
    if as_json:
        rest = {"problems": list(explanation.problems), "warnings": list(explanation.warnings)}
        click.echo(_as_json({"skipped": [asdict(s) for s in skipped], **rest}))
    else:
        click.echo(format_skipped(skipped) or "nothing is skipped")


def _as_json(content: Any) -> str:
    return json.dumps(content, indent=2)
