"""`engine-core plugins new`: begin a plugin."""

from __future__ import annotations

import click

__all__ = ["new"]


@click.command()
def new() -> None:
    """Write a complete distribution of a new plugin."""
