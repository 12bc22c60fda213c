"""`engine-core train`: see `engine_core.run.train`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from ..config import check_plugins, load_config, override
from ..examples import EXAMPLES, find_example
from .importing import import_beside

if TYPE_CHECKING:
    from ..run import RunResults

PAUSED = 75
"""EX_TEMPFAIL of sysexits.h: try again later."""


@click.command()
@click.argument("config", required=False, metavar="CONFIG.yaml", type=click.Path(path_type=Path))
@click.option("--example", metavar="NAME", help=f"Train a built-in example instead: {', '.join(EXAMPLES)}.")
@click.option("--max-duration", metavar="TIME", help="How long to train, as in 10ep, 500ba or 1h30m.")
@click.option("--seed", type=int, help="Seed of every random draw.")
@click.option("--device", metavar="NAME", help="auto, cpu, cuda or mps.")
@click.option("--out", type=click.Path(path_type=Path), help="The run's folder; default: a new one under runs/.")
@click.option("--checkpoint-every", metavar="TIME", help="Save the run at this interval, in OUT/checkpoints.")
@click.option(
    "--autoresume", is_flag=True, default=None, help="Resume from the latest checkpoint in OUT, if there is one."
)
@click.option("--load", "load_path", metavar="PATH", help="Resume from this checkpoint, or the latest in this folder.")
@click.option("--profile", type=click.Path(path_type=Path), help="Write a Chrome trace of the run to this file.")
def train(
    config: Path | None,
    example: str | None,
    out: Path | None,
    profile: Path | None,
    checkpoint_every: str | None,
    **settings: str | int | None,
) -> None:
    """Train what CONFIG.yaml describes, or a built-in example.

    Options override the config. The run's folder gets manifest.json, metrics.jsonl, metrics.csv and results.json.
    A run paused by a time limit exits with 75; resume it with --autoresume.
    """
    if (config is None) == (example is None):
        raise click.UsageError(f"give either a CONFIG.yaml or --example NAME ({', '.join(EXAMPLES)})")
    if config is not None:
        import_beside(config)
    path = config if config is not None else find_example(example or "")
    checked = override(load_config(path), **settings)
    check_plugins(checked)
    from ..run import train as run_training  # noqa: PLC0415 - config errors need not wait for torch

    results = run_training(checked, out, profile, checkpoint_every)
    show_results(results)
    if results.is_paused:
        click.echo(
            f"paused at batch {results.batches}; to resume, add --out {results.folder} --autoresume to the command",
            err=True,
        )
        sys.exit(PAUSED)


def show_results(results: RunResults) -> None:
    """Print a run's results: a table on a terminal, plain lines elsewhere."""
    done = f"{results.epochs} epochs, {results.batches} batches, {results.samples} samples"
    sections = [
        [(k, f"{v:.4g}" if isinstance(v, float) else str(v)) for k, v in sorted(results.metrics.items())],
        [("trained", done), ("time", f"{results.seconds:.1f} s"), ("samples/s", f"{results.samples_per_second:.0f}")],
        [(name, f"{count}x") for name, count in results.algorithms.items()],
    ]
    if sys.stdout is not None and sys.stdout.isatty():
        table = Table("what", "value", show_header=False)
        for rows in sections:
            for row in rows:
                table.add_row(*row)
            table.add_section()
        Console().print(table)
    else:
        width = max(len(name) for rows in sections for name, _ in rows)
        click.echo("\n".join(f"{name.ljust(width)}  {value}" for rows in sections for name, value in rows))
    click.echo(f"results in {results.folder}")
