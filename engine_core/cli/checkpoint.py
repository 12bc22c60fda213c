"""`engine-core checkpoint` and `eval`: look at what was saved, see `engine_core.checkpoint` and `engine_core.run`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click

from ..config import load_config
from ..files import finite
from ..messages import aligned, plural, readable
from ..registry import Origin, display_name
from .groups import CommandGroup, GivenPath, import_beside, stdout_at_stderr

PATH = click.argument("path", type=GivenPath())
WEIGHTS = click.option(
    "--weights",
    type=click.Choice(["evaluated", "trained"]),
    default="evaluated",
    help="Those that evaluations used, which are an average if an algorithm kept one; or those that were trained.",
)


@click.group(
    cls=CommandGroup,
    within="checkpoint.",
    epilog="\b\nExample:\n  engine-core checkpoint show runs/baseline",
)
def checkpoint() -> None:
    """Show, verify and export checkpoints.

    PATH is a checkpoint, or a saver's or a run's folder, for the latest in it.
    """


@checkpoint.command(epilog="\b\nExample:\n  engine-core checkpoint show runs/baseline/checkpoints/latest")
@PATH
@click.option("--json", "as_json", is_flag=True, help="Print the manifest.")
def show(path: Path, as_json: bool) -> None:
    """Show what a checkpoint contains, reading only its manifest."""
    from ..checkpoint import read_manifest, read_resolved  # noqa: PLC0415  help needs no torch

    folder, manifest = read_resolved(path, read_manifest)
    if as_json:
        click.echo(json.dumps(manifest, indent=2))
        return
    click.echo("\n".join(aligned([("checkpoint", str(folder)), *_rows_of(manifest)])))


@checkpoint.command(epilog="\b\nExample:\n  engine-core checkpoint verify runs/baseline")
@PATH
def verify(path: Path) -> None:
    """Read a whole checkpoint, to see that it is intact.

    If something is wrong, the file is named, and the exit code is 2.
    """
    from ..checkpoint import open_content, read_resolved  # noqa: PLC0415

    folder, content = read_resolved(path, open_content)
    click.echo(f"{folder} is as it was written: {len(content.model)} weights, {len(content.tensors)} tensors of state")


@checkpoint.command(epilog="\b\nExample:\n  engine-core checkpoint export runs/baseline weights.safetensors")
@PATH
@click.argument("to", type=GivenPath())
@WEIGHTS
def export(path: Path, to: Path, weights: str) -> None:
    """Write the model's weights to a separate safetensors file."""
    from ..checkpoint import export_weights, read_resolved  # noqa: PLC0415

    folder, _ = read_resolved(path, lambda folder: export_weights(folder, to, weights))
    click.echo(f"the weights of {folder} are in {to}")


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


def _rows_of(manifest: dict[str, Any]) -> list[tuple[str, str]]:
    average, size = manifest.get("average"), manifest.get("world_size", 1)
    return [
        ("run", str(manifest["run_name"])),
        ("clock", ", ".join(f"{unit} {count}" for unit, count in manifest["clock"].items())),
        ("seed", str(manifest["seed"])),
        *((name, str(value)) for name, value in {**manifest["versions"], **manifest.get("machine", {})}.items()),
        *(("algorithm", _described(entry)) for entry in manifest["algorithms"]),
        *([] if size == 1 else [("processes", f"{size} ({manifest.get('parallel')})")]),
        *_rows_of_files(manifest["files"]),
        ("evaluated", f"with the average of {average['algorithm']}" if average else "with the weights as trained"),
    ]


def _rows_of_files(files: dict[str, Any]) -> list[tuple[str, str]]:
    """Return a row for each file, and one for all that differ only in the number of a shard."""
    bytes_of: dict[str, list[int]] = {}
    for name, file in files.items():
        bytes_of.setdefault(re.sub(r"-\d{5}-of-", "-*-of-", name), []).append(file["bytes"])
    return [
        (name, f"{sum(each)} bytes" + (f" in {len(each)} files" if "*" in name else ""))
        for name, each in bytes_of.items()
    ]


def _described(entry: dict[str, Any]) -> str:
    settings = ", ".join(f"{name}={value!r}" for name, value in entry["settings"].items())
    name = display_name(entry["name"], Origin.of(entry["distribution"], entry["version"]))
    return f"{name} {settings}".rstrip()
