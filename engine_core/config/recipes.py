"""Recipes: what a distribution adds to a config by one name, and why. No torch."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, model_validator

from ..errors import ConfigError, did_you_mean
from ..registry import PluginRecord, unmet
from .building import find_plugin, import_plugin
from .reading import Keys, Node, Place, SourceFile, apply_overrides, names_of, read_yaml
from .schema import Config, OptimizerEntry, PluginEntry, Plugins, ScheduleEntry, Section, TrainerSettings, validated

_SECTIONS = ("algorithms", "optimizer", "schedulers", "trainer")


class Recipe(Section, BaseModel):  # the second for ruff, which allows mutable defaults in pydantic models only
    """A recipe's file: sections of a config, and why each part of them is there.

    Args:
        kind: of model or task, as `image_classification`, `language_model` or `finetune`.
        summary: one sentence.
        algorithms, optimizer, schedulers, trainer: as in a config.
        because: a reason for each part: an algorithm by its name, or `optimizer`, `schedulers`, `trainer`.
        evidence: what studies found, which `recipes show` reads; `not_tried`: where nothing is known.
    """

    kind: str
    summary: str
    algorithms: Plugins = []
    optimizer: OptimizerEntry | None = None
    schedulers: list[ScheduleEntry] = []
    trainer: TrainerSettings | None = None
    because: dict[str, str]
    evidence: list[dict[str, Any]] = []
    not_tried: list[str] = []

    def parts(self) -> dict[str, dict[str, Any]]:
        """Return what each part is in a config, by its name."""
        values = self.model_dump(exclude_unset=True, include={*_SECTIONS})
        listed = values.pop("algorithms", ())
        named = {str(each.get("name") or each["target"]): {"algorithms": [each]} for each in listed}
        return {**named, **{key: {key: value} for key, value in values.items()}}

    def lines(self) -> list[str]:
        """Return each part as a config would say it, and the reason for it."""
        found = []
        for name, part in self.parts().items():
            text = yaml.safe_dump(part, default_flow_style=True, sort_keys=False, width=sys.maxsize)
            found += [f"  {text.strip()[1:-1]}", f"      {self.because[name]}"]
        return found

    @model_validator(mode="after")
    def _each_part_has_a_reason(self) -> Recipe:
        parts = self.parts()
        for name in (*parts, *self.because):
            if name not in self.because:
                raise ValueError(f"because: say why {name!r} is part of it")
            if name not in parts:
                raise ValueError(f"because: {name!r} is not a part of it{did_you_mean(name, parts)}")
        return self


def read_recipe(record: PluginRecord, place: Place) -> tuple[Recipe, SourceFile]:
    """Read and check an installed recipe's file, wanted at `place`; nothing that it names is imported.

    Raises:
        ConfigError: (a ValueError) if it can't be used, lacks a distribution, or its file has a mistake.
    """
    for what, why in unmet(record.distribution):
        raise place.error(f"{record.title} needs {what}, which is {why}; run: pip install '{what}'")
    source = read_yaml(import_plugin("recipes", PluginEntry(name=record.qualified_name), place))
    return validated(Recipe, source.root.plain(), source, source), source


def load_config(path: Path | str, overrides: Iterable[str] = ()) -> Config:
    """Read and check a config file; of what it names, nothing is imported.

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
    """Return the source with the recipe merged that it names, if it does; `before` is what it was made with."""
    node, place = source.root.at("recipe"), Place(source, ("recipe",))
    if node is None or not isinstance(node.value, str):
        return source
    if before is not None and before.value is not None:
        raise place.error(f"a config has one recipe, and this one has been made with {before.plain()!r}")
    record = find_plugin("recipes", node.value, place)
    recipe, file = read_recipe(record, place)
    if both := _merge(source, file.root, node.origin):
        lines = [str(each.error(f"recipe {record.name!r} brings its own, and overwrites nothing")) for each in both]
        way = " ".join(f"--set {text}" for text in [*map(_taking_out, both), f"recipe={node.value}"])
        instead = f", or write, in this order and without --recipe: {way}" if isinstance(node.origin, str) else ""
        raise ConfigError("\n".join([*lines, f"remove what both have from the config{instead}"]))
    told = {key: getattr(record, key) for key in ("name", "distribution", "version")}
    node.value = {key: Node(value, node.origin) for key, value in told.items()}
    return source._replace(added=(f"recipe {record.name} ({record.origin}) adds", *recipe.lines()))


def _merge(source: SourceFile, recipe: Node, origin: int | str | None) -> list[Place]:
    """Add a recipe's sections; return the places of what the config has too."""
    root, both = source.root.value, list[Keys]()
    for key, new in [(key, node.copied(origin)) for key in _SECTIONS if (node := recipe.at(key)) and node.value]:
        old = source.root.at(key)
        if old is None or not old.value:
            root[key] = new
        elif key == "algorithms" and isinstance(old.value, list):
            added = [names_of(entry.plain())[-1] for entry in new.value]
            both += [(key, i) for i, entry in enumerate(old.value) if names_of(entry.plain())[-1] in added]
            old.value += new.value
        elif key == "trainer" and isinstance(old.value, dict):
            both += [(key, setting) for setting in new.value if setting in old.value]
            old.value = {**new.value, **old.value}
        else:
            both.append((key,))
    return [Place(source, keys) for keys in both]


def _taking_out(place: Place) -> str:
    """Return the override that takes a value out of a config."""
    listed = f"algorithms-={names_of(place.nodes()[-1].plain())[-1]}"
    return listed if place.keys[0] == "algorithms" else f"{place.path}=null"
