"""`engine-core diff`: what differs between two runs, see `engine_core_report.diff`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from engine_core.cli import GivenPath
from engine_core.explain import printable

from ..diff import compare, format_differences, has_results


@click.command(epilog="\b\nExample:\n  engine-core diff runs/baseline runs/changed")
@click.argument("run_a", type=GivenPath())
@click.argument("run_b", type=GivenPath())
@click.option("--json", "as_json", is_flag=True, help="Print an array of {section, key, a, b}.")
@click.pass_context
def diff(ctx: click.Context, run_a: Path, run_b: Path, as_json: bool) -> None:
    """Compare two finished runs.

    Each is given by its folder or its manifest.json. Settings, config, versions, the order at each event and the
    final results are compared. Not compared: the names of the run and the config file, where the run wrote to, when
    it ran and for how long.

    The exit code is 0 if nothing differs, 1 if something does, 2 if one of them is not a run.

    engine-core runs compares many runs in a table.
    """
    differences = compare(run_a, run_b)
    if as_json:
        click.echo(json.dumps([difference.as_dict() for difference in differences], indent=2))
    elif differences:
        click.echo(printable(f"--- {run_a}\n+++ {run_b}\n\n{format_differences(differences)}"))
    for run in (run_a, run_b):
        if not has_results(run):
            click.echo(printable(f"{run} has no results.json: results are not compared"), err=True)
    ctx.exit(1 if differences else 0)
