"""`engine-core plugins doctor`: see `engine_core.doctor.examine`."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from ..doctor import MOST_S, Diagnosis, examine
from ..registry import Registry
from .tables import format_table, warn_of_doubts


@click.command(epilog="\b\nExample:\n  engine-core plugins doctor --timeout 60")
@click.option("--json", "as_json", is_flag=True, help="Print an array of records with problems.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, max=MOST_S, min_open=True),
    default=20,
    show_default=True,
    metavar="SECONDS",
    help="Stop an import after this time.",
)
@click.pass_context
def doctor(ctx: click.Context, as_json: bool, timeout: float) -> None:
    """Import each plugin in its own process and report what is wrong.

    The exit code is 1 if there is a problem. What is disabled is not imported.
    """
    registry = Registry.scan()
    warn_of_doubts(registry)
    found = examine(registry.records, timeout)
    if as_json:
        click.echo(json.dumps([diagnosis.as_dict() for diagnosis in found], indent=2))
    else:
        click.echo(format_diagnoses(found))
    if registry.findings or any(diagnosis.problems for diagnosis in found):
        ctx.exit(1)


def format_diagnoses(found: Sequence[Diagnosis]) -> str:
    """Return a table with the problems below each plugin that has some, and a line that counts."""
    rows = [_row(diagnosis) for diagnosis in found]
    header = ("KIND", "NAME", "DISTRIBUTION", "VERSION", "STATUS", "IMPORT", "TORCH")
    ailing, disabled = sum(bool(d.problems) for d in found), sum(d.record.status == "disabled" for d in found)
    count = f"{len(found)} plugins, {ailing or 'none'} with problems"
    below = [d.problems or ([d.record.reason] if d.record.reason else []) for d in found]
    return format_table(header, rows, below) + f"\n{count}" + (f", {disabled} disabled" if disabled else "")


def _row(diagnosis: Diagnosis) -> Sequence[str]:
    record, seconds, torch = diagnosis.record, diagnosis.seconds, diagnosis.imports_torch
    took = "" if seconds is None else f"{seconds:.2f} s"
    brings = "" if torch is None else "yes" if torch else "no"
    return record.kind, record.name, record.distribution, record.version, record.status, took, brings
