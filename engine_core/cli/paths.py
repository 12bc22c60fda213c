"""Paths on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..arguments import path_of


class GivenPath(click.Path):
    """A path, in which a leading `~` is the home folder: shells leave it alone in `--out=~/run` and in quotes."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path."""
        return path_of(super().convert(value, param, ctx))  # type: ignore[arg-type]
