"""`engine-core explain`: the order of the algorithms, see `engine_core.explain`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..arguments import path_of
from ..config import load_config
from ..errors import ArgumentError
from ..event import Event
from ..explain import (
    Explanation,
    explain_config,
    explain_installed,
    find_algorithm,
    format_orders,
    format_pair,
    format_skipped,
    format_unordered,
    printable,
    why,
)
from ..manifest import is_run, read_manifest
from ..passes import Explained
from .streams import import_beside, stdout_at_stderr

Drawing = Callable[[Explanation, Mapping[str, Sequence[Explained]]], str]
"""What a command that draws the orders gives to this one, to be printed in place of them."""


@click.command(
    epilog="\b\nExamples:\n"
    "  engine-core explain run.yaml --event after_dataloader\n"
    "  engine-core explain run.yaml --set algorithms+=flip\n"
    "  engine-core explain --algorithms flip crop --why flip crop\n"
    "  engine-core explain run.yaml --loop fsdp\n"
    "  engine-core explain runs/baseline --skipped"
)
@click.argument("what", nargs=-1, required=True, type=click.Path(), metavar="CONFIG | RUN | --algorithms NAME...")
@click.option("--algorithms", "by_name", is_flag=True, help="Explain installed algorithms by name, in this order.")
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a value of the CONFIG, as in train."
)
@click.option("--loop", metavar="LOOP", help="List what this training loop refuses, such as fsdp, and why.")
@click.option("--event", metavar="EVENT", help="Show this event only.")
@click.option("--why", "pair", nargs=2, metavar="A B", help="Explain which of two algorithms runs first, and why.")
@click.option("--skipped", is_flag=True, help="Show only what doesn't affect the order, and why.")
@click.option("--json", "form", flag_value="json", help="Print events with lists of {algorithm, name, why, ...}.")
def explain(
    event: str | None,
    pair: tuple[str, str] | None,
    skipped: bool,
    form: str | None,
    draw: Drawing | None = None,
    **source: Any,
) -> None:
    """Show in which order algorithms run at each event, and why.

    Give a config, or the folder or manifest.json of a finished run. A run is explained from what it recorded, so its
    plugins need not be installed. The order assumes that every algorithm that lists an event matches there.

    Algorithms that can't run together, or in the --loop given, are explained too, but the problems are listed and the
    exit code is 2.
    """
    wanted = None if event is None else _event(event)
    if pair is not None and skipped:
        raise click.UsageError("give either --why A B or --skipped, not both")
    with stdout_at_stderr():
        explanation = _find_out(**source)
    if pair is not None:
        _show_pair(explanation, pair, wanted, as_json=form == "json")
    elif skipped:
        _show_skipped(explanation, wanted, as_json=form == "json")
    else:
        _show_orders(explanation, wanted, form, draw)
    for warning in explanation.warnings:
        click.echo(printable(f"warning: {warning}"), err=True)
    if explanation.problems:
        lines = [f"- {problem}".replace("\n", "\n  ") for problem in explanation.problems]
        head = f"this can't run in {source['loop']}:" if source["loop"] else "these algorithms can't run together:"
        raise ArgumentError("\n".join([head, *lines]))


def _find_out(what: Sequence[str], by_name: bool, overrides: Sequence[str], loop: str | None) -> Explanation:
    if overrides and (by_name or is_run(path_of(what[0]))):
        raise click.UsageError("--set changes a CONFIG; give one, or leave it out")
    if by_name:
        if what[0].endswith((".yaml", ".yml")):
            raise click.UsageError("give either a CONFIG or --algorithms NAME..., not both")
        return explain_installed(what, loop)
    if len(what) > 1:
        raise click.UsageError(f"give one CONFIG, or --algorithms before names: --algorithms {' '.join(what)}")
    path = path_of(what[0])
    if is_run(path):
        if loop is not None:
            raise click.UsageError("--loop takes a CONFIG or --algorithms: a run does not record what it needs")
        return read_manifest(path).explanation()
    import_beside(path)
    return explain_config(load_config(path, overrides), loop)


def _show_orders(explanation: Explanation, wanted: str | None, form: str | None, draw: Drawing | None) -> None:
    shown = {name: order for name, order in explanation.items() if wanted in (None, name)}
    unordered = {name: there for name, there in explanation.unordered.items() if wanted in (None, name)}
    if form == "json":
        click.echo(_as_json({name: told for name, told in explanation.records().items() if wanted in (None, name)}))
        return
    if not shown and not unordered:
        click.echo(f"no algorithm at {wanted or 'any event'}", err=draw is not None)
    elif shown and draw:
        click.echo(printable(draw(explanation, shown)))
    elif shown:
        _show(shown)
    if unordered:
        separator = "\n" if shown and not draw else ""
        click.echo(f"{separator}{format_unordered(unordered)}", err=draw is not None)
    skipped = [s for s in explanation.skipped if wanted is None or wanted in s.events]
    if skipped and not draw and (shown or unordered):
        click.echo(f"\n{format_skipped(skipped)}")


def _show(orders: Mapping[str, Sequence[Explained]]) -> None:
    """Print a table for each event with several algorithms on a terminal, plain lines elsewhere."""
    if not sys.stdout.isatty():
        click.echo(format_orders(orders))
        return
    for event, order in orders.items():
        if len(order) == 1:
            click.echo(format_orders({event: order}))
            continue
        table = Table("#", "algorithm", "from", "why", title=escape(printable(event)), title_justify="left")
        for place, explained in enumerate(order, start=1):
            cells = (str(place), explained.algorithm, str(explained.origin or "you"), explained.why)
            table.add_row(*(escape(printable(cell)) for cell in cells))
        Console().print(table)


def _show_pair(explanation: Explanation, pair: tuple[str, str], wanted: str | None, *, as_json: bool) -> None:
    one, other = (find_algorithm(explanation, name) for name in pair)
    if one == other:
        raise click.BadParameter(f"{pair[0]!r} and {pair[1]!r} are the same algorithm", param_hint="'--why'")
    events = [wanted] if wanted else _common(explanation, one, other)
    reasons = [why(explanation, one, other, event) for event in events]
    if as_json:
        found = [{"why": reason} if isinstance(reason, str) else asdict(reason) for reason in reasons]
        click.echo(_as_json([{"event": e, **content} for e, content in zip(events, found, strict=True)]))
    elif reasons:
        click.echo("\n\n".join(map(format_pair, reasons)))
    else:
        click.echo(printable(f"{one} and {other} have no event in common"))


def _common(explanation: Explanation, one: str, other: str) -> list[str]:
    there = {name: set(derivation.members) for name, derivation in explanation.derivations.items()}
    there |= {name: {m.algorithm for m in event.members} for name, event in explanation.unordered.items()}
    return [name for name, members in there.items() if {one, other} <= members]


def _show_skipped(explanation: Explanation, wanted: str | None, *, as_json: bool) -> None:
    skipped = [s for s in explanation.skipped if wanted is None or wanted in s.events]
    if as_json:
        rest = {"problems": list(explanation.problems), "warnings": list(explanation.warnings)}
        click.echo(_as_json({"skipped": [asdict(s) for s in skipped], **rest}))
    else:
        click.echo(format_skipped(skipped) or "nothing is skipped")


def _as_json(content: Any) -> str:
    return json.dumps(content, indent=2)


def _event(name: str) -> str:
    try:
        return Event(name).value
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="'--event'") from None
