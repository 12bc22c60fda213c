"""`engine-core plugins`: what is installed, see `engine_core.registry.Registry`."""

from __future__ import annotations

import dataclasses
import json

import click

from ..registry import Registry
from .groups import CommandGroup
from .tables import format_table, warn_of_doubts


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
