"""`engine-core watch`: the page of runs, which follows them while they train, see `engine_core_report`."""

from __future__ import annotations

from pathlib import Path

import click

from engine_core.cli import GivenPath

from .. import PageServer
from .report import opened


@click.command(epilog="\b\nExample:\n  engine-core watch runs/changed --open")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=GivenPath())
@click.option("--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="The port; by default a free one.")
@click.option("--open", "opens", is_flag=True, help="Show the page in a browser.")
def watch(runs: tuple[Path, ...], port: int, opens: bool) -> None:
    """Serve the page of engine-core report while runs train.

    The page follows the runs: values, charts and tables come as they are logged. The first line printed is its address,
    which only this machine can reach. Ctrl-C ends the command, and nothing else.

    The exit code is 2 if one of them is not a run, or if the port is taken.
    """
    with PageServer(runs, port) as server:
        click.echo(server.address)
        if opens and not opened(server.address):
            click.echo("no browser could be started: open the address in one", err=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            server.closing.set()
