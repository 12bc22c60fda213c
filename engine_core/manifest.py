"""Read the manifest of a finished run, without the run's plugins installed."""

from __future__ import annotations

import reprlib
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field, ValidationError

from .errors import ArgumentError, suggestion
from .explain import Told, printable
from .files import MOST_BYTES_OF_JSON, read_json, why_not

__all__ = ["NAME", "SCHEMA", "Manifest", "is_folder", "is_run", "read_manifest"]

NAME = "manifest.json"
SCHEMA = 1
"""Number of what a manifest holds and means. Additions leave it; removals and changes raise it."""
PREFIX = "Value error, "


class Manifest(Told):
    """A run as it was when it started.

    Args:
        schema_number: in the file it is called `schema`.
        world_size, parallel: over how many processes the run was spread, and how: `ddp`, `fsdp`, or null for one.
        command: how it was started.
        versions: of Python, torch, the core and each plugin in use.
        overrides: the changes to the config file that `--set` made, as given; `config` has them.
        config: the config that repeats the run.
        higher_is_better: what the run's metrics say of themselves, by name; None: an older version, which did not ask.
    """

    model_config = ConfigDict(populate_by_name=True, frozen=True)

    schema_number: int = Field(alias="schema")
    run_name: str
    seed: int
    device: str
    precision: str
    world_size: int = 1
    parallel: str | None = None
    command: list[str]
    versions: dict[str, str]
    config_file: str
    overrides: tuple[str, ...] = ()
    config: dict[str, Any]
    higher_is_better: dict[str, bool] | None = None


def is_run(path: Path) -> bool:
    """Can this be a finished run, that is a folder or a manifest?"""
    return is_folder(path) or path.suffix == ".json"


def read_manifest(path: Path) -> Manifest:
    """Return the manifest of a run, given its folder or the file itself.

    Raises:
        ArgumentError: (a ValueError) if it is missing, damaged, or of a newer engine-core.
    """
    file = path / NAME if is_folder(path) else path
    if why_not(file, MOST_BYTES_OF_JSON, follow=True) == "":
        raise ArgumentError(_missing(path))
    content = read_json(file)
    number = content.get("schema") if isinstance(content, dict) else None
    if type(number) is not int or "run_name" not in content:
        raise ArgumentError(f"{str(file)!r} is not a run's manifest: it has no schema number or no run_name")
    if number != SCHEMA:
        raise ArgumentError(
            f"{str(file)!r} has schema {number!r:.80}, this engine-core reads schema {SCHEMA}; install the version "
            "that wrote it, or a newer one"
        )
    try:
        return Manifest.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = printable("".join(f"{part}: " for part in [".".join(map(str, first["loc"]))] if part))
        value = "" if isinstance(first["input"], (dict, list, Told)) else f", not {reprlib.repr(first['input'])}"
        raise ArgumentError(f"{str(file)!r} is damaged: {where}{first['msg'].removeprefix(PREFIX)}{value}") from None


def is_folder(path: Path) -> bool:
    """Return whether a path is a folder; a name that no folder can have is not."""
    try:
        return path.is_dir()
    except OSError:
        return False


def _missing(path: Path) -> str:
    if is_folder(path):
        return f"{str(path)!r} holds no {NAME}: it is not a run's folder"
    try:
        siblings = [sibling.name for sibling in path.parent.iterdir()]
    except OSError:
        siblings = []
    return f"{str(path)!r} does not exist{suggestion(path.name, siblings)}"
