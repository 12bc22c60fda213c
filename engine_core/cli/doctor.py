"""`engine-core plugins doctor`: import each plugin and check it."""

from __future__ import annotations

import click

__all__ = ["doctor"]


@click.command()
def doctor() -> None:
    """Import each plugin in a process of its own and say what is wrong."""
