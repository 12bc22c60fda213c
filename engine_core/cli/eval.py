"""`engine-core eval`: see `engine_core.run.evaluate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from ..config import load_config
from ..files import finite
from ..messages import aligned, plural, readable
from .groups import WEIGHTS, GivenPath
from .streams import import_beside, stdout_at_stderr


@click.command("eval", epilog="\b\nExample:\n  engine-core eval runs/baseline --trust --data test")
@click.argument("path", metavar="RUN|CHECKPOINT", type=GivenPath())
@click.option("--trust", is_flag=True, help="Make model and data as the run's own config says, which runs its code.")
@click.option("--config", metavar="FILE", type=GivenPath(), help="Make them as this config says instead.")
@click.option("--data", metavar="LABEL", help="Evaluate on this loader alone.")
@click.option("--device", metavar="NAME", help="auto, cpu, cuda or mps; default: the config's.")
@WEIGHTS
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def evaluate(path: Path, trust: bool, config: Path | None, as_json: bool, **options: Any) -> None:
    """Evaluate a trained model on the evaluation loaders of its config; write nothing.

    RUN is the folder of a run. CHECKPOINT is a checkpoint, or the folder of a saver, for its latest.
    """
    if (config is None) is not trust:
        raise click.UsageError("give either --trust, to run what the run's own config names, or --config FILE")
    given = None
    if config is not None:
        import_beside(config)
        given = load_config(config)
    from ..run import evaluate as run_evaluation  # noqa: PLC0415  config errors need not wait for torch

    with stdout_at_stderr():
        found = run_evaluation(path, given, trust=trust, **options)
    if as_json:
        click.echo(json.dumps({**found._asdict(), "results": finite(found.results)}))
        return
    told = {readable(name): f"{value:.4g}" for name, value in sorted(found.results.items())}
    told["weights"] = f"{readable(found.weights)}, after {plural(found.step, 'batch', 'batches')}"
    click.echo("\n".join(aligned(told.items())))
