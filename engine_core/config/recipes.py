"""Recipes: what a distribution adds to a config by one name, why, and the study that proves it. No torch."""

from __future__ import annotations

import importlib.resources
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import yaml
from pydantic import BaseModel, Field, model_validator

from ..errors import ConfigError, did_you_mean
from ..registry import PluginRecord, unmet
from .building import find_plugin, import_plugin
from .reading import Keys, Node, Place, SourceFile, apply_overrides, names_of, read_yaml
from .schema import (
    Config,
    OptimizerEntry,
    PluginEntry,
    Plugins,
    ScheduleEntry,
    Section,
    TrainerSettings,
    validated,
)

_SECTIONS = ("algorithms", "optimizer", "schedulers", "trainer")
"""The sections of a config that a recipe may have."""


class Evidence(Section, BaseModel):  # the second for ruff, which allows mutable defaults in pydantic models only
    """What a study found: how much less the recipe costs to reach what the baseline reaches.

    Args:
        task, model: what was trained.
        baseline, tuned: what it is compared with, and how the baseline's settings were chosen.
        reached: the result that both reach.
        cost: the unit, as in `row passes`.
        gain, interval: the baseline's cost divided by the recipe's, and the ends of its 95 % interval.
        seeds: how many runs each has.
        without: what the study says of the recipe without a part, by the part's name.
        study: the command that trains it again.
    """

    task: str
    model: str
    baseline: str
    tuned: str
    reached: str
    cost: str
    gain: Annotated[float, Field(gt=0)]
    interval: Annotated[list[float], Field(min_length=2, max_length=2)]
    seeds: Annotated[int, Field(gt=0)]
    without: dict[str, str] = {}
    study: str

    @property
    def words(self) -> str:
        """The gain in words, as `2x fewer row passes (1.8x to 2.3x)`."""
        low, high = self.interval
        return f"{self.gain:g}x fewer {self.cost} ({low:g}x to {high:g}x)"

    @model_validator(mode="after")
    def _gain_is_inside(self) -> Evidence:
        low, high = self.interval
        if not low <= self.gain <= high:
            raise ValueError(f"the gain {self.gain:g} is not in its interval [{low:g}, {high:g}]")
        return self


class Recipe(Section, BaseModel):  # as above
    """A recipe's file: sections of a config, why each part is there, and what a study found.

    Args:
        kind: of model or task, as `image_classification`, `language_model` or `finetune`.
        summary: one sentence.
        algorithms, optimizer, schedulers, trainer: as in a config.
        batch_size: the rows of a batch that the learning rates are for.
        because: a reason for each part: an algorithm by its name, or `optimizer`, `schedulers`, `trainer`.
        evidence: what studies found; empty: it was not measured yet.
        not_tried: where nothing is known of it.
    """

    kind: str
    summary: str
    algorithms: Plugins = []
    optimizer: OptimizerEntry | None = None
    schedulers: list[ScheduleEntry] = []
    trainer: TrainerSettings | None = None
    batch_size: Annotated[int, Field(gt=0)] | None = None
    because: dict[str, str]
    evidence: list[Evidence] = []
    not_tried: list[str] = []

    def parts(self) -> dict[str, dict[str, Any]]:
        """Return what each part is in a config, by its name."""
        values = self.model_dump(exclude_unset=True, include={*_SECTIONS})
        listed = values.pop("algorithms", [])
        named = zip(map(_name_of, self.algorithms), listed, strict=True)
        return {name: {"algorithms": [value]} for name, value in named} | {key: {key: values[key]} for key in values}

    def lines(self) -> list[str]:
        """Return what it adds to a config, as the config would say it, each with its reason."""
        lines = []
        for name, part in self.parts().items():
            text = yaml.safe_dump(part, default_flow_style=True, sort_keys=False, width=sys.maxsize)
            lines += [f"  {text.strip()[1:-1]}", f"      {self.because[name]}"]
        return lines

    @model_validator(mode="after")
    def _each_part_has_a_reason(self) -> Recipe:
        names, parts = [*map(_name_of, self.algorithms)], self.parts()
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"algorithms: {twice!r} is there twice; take one out")
        if missing := next((name for name in parts if name not in self.because), None):
            raise ValueError(f"because: say why {missing!r} is part of it")
        for key, given in (("because", self.because), *(("without", each.without) for each in self.evidence)):
            if unknown := next((name for name in given if name not in parts), None):
                raise ValueError(f"{key}: {unknown!r} is not a part of the recipe{did_you_mean(unknown, parts)}")
        return self


def _name_of(entry: PluginEntry) -> str:
    return entry.name or entry.target or ""


class FoundRecipe(NamedTuple):
    """An installed recipe, the file that it is, and what ships it."""

    recipe: Recipe
    source: SourceFile
    record: PluginRecord


def read_recipe(name: str, place: Place = Place()) -> FoundRecipe:
    """Read and check an installed recipe's file; nothing that it names is imported.

    Args:
        place: where it is named, for messages.

    Raises:
        ConfigError: (a ValueError) if it is not installed, lacks a distribution, or its file has a mistake.
    """
    record = find_plugin("recipes", name, place)
    if missing := unmet(record.distribution):
        (what, why), *_ = missing
        raise place.error(f"{record.title} needs {what}, which is {why}; run: pip install '{what}'")
    with importlib.resources.as_file(import_plugin("recipes", PluginEntry(name=name), place)) as file:
        source = read_yaml(file)
    return FoundRecipe(validated(Recipe, source.root.plain(), source, source), source, record)


def load_config(path: Path | str, overrides: Iterable[str] = ()) -> Config:
    """Read and check a config file; nothing that it names is imported.

    Args:
        overrides: changes to make first, in order, as `--set` takes them: `"optimizer.args.lr=1e-3"`.

    Raises:
        ConfigError: (a ValueError) with one line for each problem: file, line, key, what is wrong, the nearest name.
    """
    source = _with_recipe(read_yaml(path), None)
    for text in overrides:
        source = _with_recipe(apply_overrides(source, [text]), source.root.at("recipe"))
    return validated(Config, source.root.plain(), source, source)


def _with_recipe(source: SourceFile, before: Node | None) -> SourceFile:
    """Return the source with the recipe merged that it names, if it does; `before` is the record of an earlier one."""
    node, place = source.root.at("recipe"), Place(source, ("recipe",))
    if node is None or not isinstance(node.value, str):
        return source
    if before is not None and before.value is not None:
        raise place.error(f"{before.plain()!r} is merged already, and a config has one recipe")
    name, (recipe, file, record) = node.value, read_recipe(node.value, place)
    _merge(source, file.root, name, place.origin)
    known = {"name": record.name, "distribution": record.distribution, "version": record.version}
    node.value = {key: Node(value, node.origin) for key, value in known.items()}
    rows = f", with learning rates for batches of {recipe.batch_size} rows," if recipe.batch_size else ""
    return source._replace(added=(f"recipe {record.name} ({record.origin}){rows} adds", *recipe.lines()))


def _merge(source: SourceFile, recipe: Node, name: str, origin: int | str | None) -> None:
    """Add a recipe's sections; what the config has too is refused."""
    root, taken = source.root.value, list[Keys]()
    for key in _SECTIONS:
        old, given = source.root.at(key), recipe.at(key)
        if given is None or given.value is None:
            continue
        new = given.copied(origin)
        if old is None or not old.value:
            root[key] = new
        elif key == "algorithms" and isinstance(old.value, list):
            added = [names_of(entry.plain())[-1] for entry in new.value]
            taken += [(key, i) for i, entry in enumerate(old.value) if names_of(entry.plain())[-1] in added]
            old.value += new.value
        elif key == "trainer" and isinstance(old.value, dict):
            taken += [(key, setting) for setting in new.value if setting in old.value]
            old.value = {**new.value, **old.value}
        else:
            taken.append((key,))
    if taken:
        places = [Place(source, keys) for keys in taken]
        lines = [str(place.error(f"recipe {name!r} brings its own, and overwrites nothing")) for place in places]
        way = " ".join(f"--set {text}" for text in [*map(_taking_out, places), f"recipe={name}"])
        instead = f", or write, in this order and without --recipe: {way}" if isinstance(origin, str) else ""
        raise ConfigError("\n".join([*lines, f"remove what both have from the config{instead}"]))


def _taking_out(place: Place) -> str:
    """Return the override that takes a value out of a config."""
    listed = f"algorithms-={names_of(place.nodes()[-1].plain())[-1]}"
    return listed if place.keys[0] == "algorithms" else f"{place.path}=null"
