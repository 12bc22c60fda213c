"""`engine-core recipes`: which are installed, and what is known of each."""

from __future__ import annotations

import click

from engine_core.cli import format_table
from engine_core.errors import EngineError
from engine_core.messages import escaped
from engine_core.registry import Registry

from .evidence import NOTHING, page_of, read_studied


@click.group(epilog="\b\nExample:\n  engine-core recipes show fast-images")
def recipes() -> None:
    """Show the installed recipes: what each adds to a config, and the studies that prove it."""


@recipes.command("list", epilog="\b\nExample:\n  engine-core recipes list")
def list_recipes() -> None:
    """List the installed recipes.

    Each has the gain that its first study found.
    """
    rows, notes = list[tuple[str, ...]](), list[list[str]]()
    for record in Registry.scan().records_of("recipes"):
        try:
            recipe = read_studied(record)
        except EngineError as error:
            rows.append((record.name, "", str(record.origin), "can't be used"))
            notes.append(str(error).splitlines())
        else:
            gains = [f"{each.words}: {each.task}" for each in recipe.evidence[:1]]
            rows.append((record.name, recipe.kind, str(record.origin), *(gains or [NOTHING])))
            notes.append([recipe.summary])
    click.echo(format_table(("NAME", "KIND", "DISTRIBUTION", "GAIN"), rows, notes))


@recipes.command("show", epilog="\b\nExample:\n  engine-core recipes show fast-images")
@click.argument("name")
def show_recipe(name: str) -> None:
    """Show a recipe and its evidence.

    That is what it adds and why, what studies found of it, and where it was not tried.
    """
    click.echo(escaped("\n".join(page_of(Registry.scan().find("recipes", name))), keep="\n"))
