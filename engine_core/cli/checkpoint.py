"""`engine-core checkpoint`: look at checkpoints, see `engine_core.checkpoint`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click

from ..errors import CheckpointError
from ..messages import aligned
from ..registry import Origin, display_name
from .groups import WEIGHTS, CommandGroup, GivenPath

PATH = click.argument("path", type=GivenPath())


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
    try:
        lines = aligned([("checkpoint", str(folder)), *_rows_of(manifest)])
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise CheckpointError(f"{str(folder)!r} has an invalid manifest: {error!r}") from error
    click.echo("\n".join(lines))


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
