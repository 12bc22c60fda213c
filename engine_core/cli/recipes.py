"""`engine-core recipes`: which are installed, and what is known of them, see `engine_core.config.read_recipe`."""

from __future__ import annotations

import click

from ..config import FoundRecipe, read_recipe
from ..errors import EngineError
from ..messages import aligned, escaped
from ..registry import CORE, Registry
from .groups import CommandGroup
from .plugins import format_table

_NOTHING = "not measured yet"


@click.group(cls=CommandGroup, within="recipes.", epilog="\b\nExample:\n  engine-core recipes show fast-images")
def recipes() -> None:
    """Show the installed recipes: what each adds to a config, and the studies that prove it."""


@recipes.command("list", epilog="\b\nExample:\n  engine-core recipes list")
def list_recipes() -> None:
    """List the installed recipes, each with its first gain."""
    rows, notes = [], []
    for record in Registry.scan().records_of("recipes"):
        try:
            recipe = read_recipe(record.qualified_name).recipe
        except EngineError as error:
            rows.append((record.name, "", str(record.origin), "can't be used"))
            notes.append([str(error)])
        else:
            gains = [f"{each.words}: {each.task}" for each in recipe.evidence[:1]]
            rows.append((record.name, recipe.kind, str(record.origin), *(gains or [_NOTHING])))
            notes.append([recipe.summary])
    if rows:
        click.echo(format_table(("NAME", "KIND", "DISTRIBUTION", "GAIN"), rows, notes))
    else:
        click.echo(f'no recipe is installed; pip install "{CORE}[recipes]" brings some')


@recipes.command("show", epilog="\b\nExample:\n  engine-core recipes show fast-images")
@click.argument("name")
def show_recipe(name: str) -> None:
    """Show what a recipe adds and why, what studies found of it, and where it was not tried."""
    click.echo(escaped("\n".join(_page(read_recipe(name))), keep="\n"))


def _page(found: FoundRecipe) -> list[str]:
    recipe, record = found.recipe, found.record
    rows = f"; its learning rates are for batches of {recipe.batch_size} rows" if recipe.batch_size else ""
    lines = [f"{record.name} ({record.origin}), for {recipe.kind}: {recipe.summary}", f"adds{rows}", *recipe.lines()]
    for each in recipe.evidence:
        values = {name: str(getattr(each, name)) for name in ("task", "model", "reached", "baseline", "tuned")}
        values |= {"gain": f"{each.words}, with {each.seeds} seeds"}
        values |= {f"without {name}": text for name, text in each.without.items()} | {"study": each.study}
        lines += ["evidence", *(f"  {line}" for line in aligned([*values.items()]))]
    lines += [] if recipe.evidence else ["evidence", f"  {_NOTHING}"]
    return [*lines, *(["not tried"] if recipe.not_tried else []), *(f"  {text}" for text in recipe.not_tried)]
