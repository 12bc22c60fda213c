"""`engine-core plugins`: what is installed, see `engine_core.registry.Registry`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

import click

from ..messages import aligned, readable
from ..registry import Registry
from .groups import CommandGroup

_WIDEST, _LONGEST = 100, 3000  # characters of a cell, and of a line below


@click.group(
    cls=CommandGroup,
    within="plugins.",
    epilog="\b\nExample:\n  engine-core plugins list",
)
def plugins() -> None:
    """List the installed plugins, check them, or start your own."""


@plugins.command("list", epilog="\b\nExample:\n  engine-core plugins list --json")
@click.option("--json", "as_json", is_flag=True, help="Print an array of records.")
def list_plugins(as_json: bool) -> None:
    """List the installed plugins without importing them.

    The status is available, disabled (by the environment), ambiguous (the name is claimed twice) or broken.
    """
    registry = Registry.scan()
    records = registry.records
    warn_of_doubts(registry)
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(record) for record in records], indent=2))
        return
    rows = [(r.kind, r.name, r.distribution, r.version, r.status) for r in records]
    header = ("KIND", "NAME", "DISTRIBUTION", "VERSION", "STATUS")
    click.echo(format_table(header, rows, [[r.reason] if r.reason else [] for r in records]))


def warn_of_doubts(registry: Registry) -> None:
    """Show what can't be read of what is installed, and what is doubtful in the environment's lists."""
    for doubt in (*registry.findings, *registry.doubts):
        click.echo(f"warning: {readable(doubt, _LONGEST)}", err=True)


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]], below: Sequence[Sequence[str]]) -> str:
    """Return a table in columns, each row followed by its lines of `below`, indented.

    Example:
        >>> print(format_table(["NAME", "STATUS"], [["pad", "broken"], ["tilt", "available"]], [["no disk"], []]))
        NAME  STATUS
        pad   broken
            no disk
        tilt  available
    """
    lines = aligned([header, *([readable(cell, _WIDEST) for cell in row] for row in rows)])
    notes = [[f"    {readable(note, _LONGEST)}" for note in each] for each in below]
    return "\n".join(line for row, each in zip(lines, [[], *notes], strict=True) for line in (row, *each))
