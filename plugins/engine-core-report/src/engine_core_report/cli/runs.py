"""`engine-core runs`: runs beside each other, see `engine_core_report.rank_runs`."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click

from engine_core.cli import GivenPath
from engine_core.errors import ArgumentError
from engine_core.explain import printable
from engine_core.files import MOST_BYTES_OF_JSON, why_not
from engine_core.manifest import NAME
from engine_core.messages import join_words, plural

from .. import RunData, columns_of, is_lower_better, rank_runs, read_run, to_csv
from .tables import format_groups, shortened

FOLDER = Path("runs")
_LEAST = 3
"""How many groups a table has however narrow the terminal is: the run, its status, a value."""
_NAMED = 8


@click.command(
    epilog="\b\nExamples:\n"
    "  engine-core runs --by eval/accuracy\n"
    "  engine-core runs runs/baseline runs/changed --by eval/gap --lower --csv"
)
@click.argument("runs", nargs=-1, metavar="[RUN...]", type=GivenPath())
@click.option("--by", metavar="NAME", help="Rank by this value, such as eval/loss: the best run first.")
@click.option(
    "--lower/--higher", "lower", default=None, help="Which of two values is better; default: as the runs say."
)
@click.option("--json", "form", flag_value="json", help="Print an array of {run, status, values, settings}.")
@click.option("--csv", "form", flag_value="csv", help="Print a column for the best and the last of each value.")
def runs(runs: tuple[Path, ...], by: str | None, lower: bool | None, form: str | None) -> None:
    """Compare many runs: a row for each, with its values and what differs.

    Each run is given by its folder or its manifest.json; without any, all runs in runs/ are shown. A row shows how far
    the run is, the best and the last of each value, and what differs from the other runs in settings and config. The
    table has the columns that fit the terminal; --json and --csv have all.

    With --by, a run ranks by its best value, or by its last if it has no best, as values of train/ do. NaN ranks
    behind all numbers, and a run without the value is last.

    engine-core diff compares two runs closely.
    """
    if lower is not None and by is None:
        raise click.UsageError("--lower and --higher say how to rank: give --by NAME too")
    data = [read_run(run) for run in runs] or list(_runs_in(FOLDER))
    rows = rank_runs(data, by, lower=lower)
    if form == "json":
        click.echo(json.dumps([row.to_json() for row in rows], indent=2))
    elif form == "csv":
        click.echo(to_csv(rows), nl=False)
    else:
        width = shutil.get_terminal_size().columns
        table, left_out = format_groups(columns_of(rows, by), width, _LEAST)
        click.echo(table)
        notes = [] if by is None else [_told(by, is_lower_better(data, by) if lower is None else lower)]
        if left_out:
            columns = plural(len(left_out), "more column", "more columns")
            notes.append(f"{columns} in --csv and --json: {join_words([*map(shortened, left_out)], _NAMED)}")
        for note in notes:
            click.echo("\n".join(textwrap.wrap(note, width, break_long_words=False, break_on_hyphens=False)), err=True)


def _runs_in(folder: Path) -> Iterator[RunData]:
    """Yield the runs in a folder by name; what is not a run is passed over, and a run that can't be read is told."""
    try:
        inside = sorted(folder.iterdir())
    except OSError as error:
        raise ArgumentError(
            f"there are no runs here: '{folder}' can't be read: {error.strerror}; give the folders of runs"
        ) from None
    found = 0
    for path in inside:
        if why_not(path / NAME, MOST_BYTES_OF_JSON, follow=True) == "":
            continue
        try:
            run = read_run(path)
        except ArgumentError as error:
            click.echo(printable(f"warning: left out: {error}"), err=True)
        else:
            found += 1
            yield run
    if not found:
        raise ArgumentError(f"there are no runs in '{folder}': give the folders of runs")


def _told(by: str, is_lower: bool) -> str:
    better, other = ("lower", "--higher") if is_lower else ("higher", "--lower")
    return f"ranked by {shortened(by)}: {better} is better, unless you say {other}"
