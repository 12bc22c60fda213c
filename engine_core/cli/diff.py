"""`engine-core diff`: what differs between two runs."""

from __future__ import annotations

import click

__all__ = ["diff"]


@click.command()
def diff() -> None:
    """Compare the manifests of two runs."""
