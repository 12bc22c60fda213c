"""`engine-core report`: one page that shows what runs did, see `engine_core_report`."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import click

from engine_core.cli import GivenPath
from engine_core.explain import printable

from .. import read_run, read_study, write_report, write_study
from ..study import is_study

NAME = "report.html"


@click.command(
    epilog="\b\nExamples:\n"
    "  engine-core report runs/baseline runs/changed --out both.html\n"
    "  engine-core report studies/first"
)
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=GivenPath())
@click.option("--out", metavar="FILE", type=GivenPath(), help="The file to write.")
@click.option("--force", is_flag=True, help="Overwrite FILE even if it is not a report.")
@click.option("--open", "opens", is_flag=True, help="Show the page in a browser.")
def report(runs: tuple[Path, ...], out: Path | None, force: bool, opens: bool) -> None:
    """Write one page that shows what runs did, or what a study found.

    Each run is given by its folder or its manifest.json; it may still be training. The page of one run goes to
    report.html in its folder, that of several to report.html in the current folder. The page is one file that loads
    nothing. The last line printed is its path.

    The page of a study, given by its folder, goes to report.html in it. It links to the pages of the study's runs,
    which are written too.

    The exit code is 2 if one of them is not a run, or if another file would be overwritten.
    """
    if any(map(is_study, runs)):
        if len(runs) > 1:
            raise click.UsageError("a study has a page of its own: give its folder alone")
        study = read_study(runs[0])
        path = out or study.folder / NAME
        write_study(study, path, force=force)
    else:
        data = [read_run(run) for run in runs]
        is_one = len({run.folder.resolve() for run in data}) == 1
        path = out or (data[0].folder / NAME if is_one else Path(NAME))
        write_report(data, path, force=force)
    if opens and not opened(path.absolute().as_uri()):
        click.echo(printable(f"no browser could be started: open {path} in one"), err=True)
    click.echo(printable(str(path)))


def opened(address: str) -> bool:
    """Show a page in a browser; return whether one could be started."""
    try:
        return webbrowser.open(address)
    except (webbrowser.Error, OSError):
        return False
