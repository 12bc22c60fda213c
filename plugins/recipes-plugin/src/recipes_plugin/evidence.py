"""What a recipe's file says of studies, checked, and all of the file as a page of text. No torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field, model_validator

from engine_core.config import Place, Recipe, Section, read_recipe, validated
from engine_core.errors import did_you_mean
from engine_core.messages import aligned
from engine_core.registry import PluginRecord

NOTHING = "not measured yet"


class Evidence(Section, BaseModel):  # the second for ruff, which allows mutable defaults in pydantic models only
    """What a study found: how much less a recipe costs to reach what a baseline reaches.

    Args:
        task, model: what was trained.
        reached: the result that both reach.
        baseline, tuned: what the recipe is compared with, and how the baseline's settings were chosen.
        cost: the unit, in the plural, as `row passes`.
        gain, interval: the baseline's cost divided by the recipe's, and the least and the largest of single seeds.
        seeds: how many runs each has.
        without: what the study says of the recipe without a part, by the part's name.
        study: the command that trains it all again.

    Example:
        >>> told = {"task": "digits", "model": "a small net", "reached": "98 %", "baseline": "SGD", "tuned": "3 rates"}
        >>> Evidence(**told, cost="row passes", gain=2, interval=[1.8, 2.3], seeds=5, study="study.yaml").words
        '2x fewer row passes (1.8x to 2.3x)'
    """

    task: str
    model: str
    reached: str
    baseline: str
    tuned: str
    cost: str
    gain: Annotated[float, Field(gt=0)]
    interval: Annotated[list[float], Field(min_length=2, max_length=2)]
    seeds: Annotated[int, Field(gt=0)]
    without: dict[str, str] = {}
    study: str

    @property
    def words(self) -> str:
        """The gain in words."""
        low, high = self.interval
        return f"{self.gain:g}x fewer {self.cost} ({low:g}x to {high:g}x)"

    @model_validator(mode="after")
    def _gain_is_inside(self) -> Evidence:
        low, high = self.interval
        if not low <= self.gain <= high:
            raise ValueError(f"the gain {self.gain:g} is not in its interval [{low:g}, {high:g}]")
        return self


class StudiedRecipe(Recipe, BaseModel):  # as above
    """A recipe's file, with what it says of studies checked."""

    evidence: list[Evidence] = []  # type: ignore[assignment]

    @model_validator(mode="after")
    def _what_is_left_out_is_a_part(self) -> StudiedRecipe:
        parts = self.parts()
        for name in (name for each in self.evidence for name in each.without):
            if name not in parts:
                raise ValueError(f"without: {name!r} is not a part of it{did_you_mean(name, parts)}")
        return self


def read_studied(record: PluginRecord) -> StudiedRecipe:
    """Read and check the file of an installed recipe.

    Raises:
        ConfigError: (a ValueError) with the file, the line, the key and what is wrong with it.
    """
    _, source = read_recipe(record, Place())
    return validated(StudiedRecipe, source.root.plain(), source, source)


def page_of(record: PluginRecord) -> list[str]:
    """Return as lines what a recipe adds and why, what studies found of it, and where it was not tried."""
    recipe = read_studied(record)
    lines = [f"{record.name} ({record.origin}), for {recipe.kind}: {recipe.summary}", "adds", *recipe.lines()]
    for each in recipe.evidence:
        values = {name: getattr(each, name) for name in ("task", "model", "reached", "baseline", "tuned")}
        values |= {"gain": f"{each.words}, with {each.seeds} seeds"}
        values |= {f"without {name}": text for name, text in each.without.items()} | {"study": each.study}
        lines += ["evidence", *(f"  {line}" for line in aligned([*values.items()]))]
    lines += [] if recipe.evidence else ["evidence", f"  {NOTHING}"]
    return [*lines, *(["not tried"] if recipe.not_tried else []), *(f"  {text}" for text in recipe.not_tried)]
