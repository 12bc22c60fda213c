"""What a study found, read from its `study.json` as data. Needs neither torch nor engine-core-study."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from engine_core.arguments import path_of
from engine_core.errors import ArgumentError
from engine_core.files import MOST_BYTES_OF_JSON, read_json, why_not
from engine_core.messages import escaped

NAME = "study.json"
SCHEMA = 1
Number = Annotated[float, Field(ge=-1e300, le=1e300)]
"""Differences of these are finite, too."""


class _Part(BaseModel):
    """A part of the file; what a later version adds is passed over."""

    model_config = ConfigDict(frozen=True, strict=True)


class Difference(_Part):
    """How an arm differs from the baseline: the arm's values minus those of the same seeds."""

    verdict: str
    n: int
    mean: Number | None
    low: Number | None
    high: Number | None
    p_corrected: Number | None
    arms: int
    words: str


class Value(_Part):
    """A reported value of an arm."""

    n: int
    mean: Number | None
    sd: Number | None
    by_seed: dict[str, Number | None]
    difference: Difference | None


class Ratio(_Part):
    """An arm's seconds as a multiple of the baseline's: the median over pairs of runs, and the ends."""

    median: Number
    low: Number
    high: Number
    n: int
    adjacent: bool


class Cost(_Part):
    """What a run of an arm costs in the mean."""

    seconds: Number | None
    samples: Number | None
    tokens: Number | None
    ratio: Ratio | None


class Rung(_Part):
    """The means of an arm at one of the lengths."""

    length: str | None
    n: int
    values: dict[str, Number | None]
    sd: dict[str, Number | None] = {}
    compute: Number | None
    seconds: Number | None


class Reached(_Part):
    """What it costs to reach a target; `bound` is `<` or `>` where the ladder ends."""

    cost: Number | None
    bound: str


class Target(_Part):
    """The same in both units; None where no run tells it."""

    compute: Reached | None = None
    seconds: Reached | None = None


class Arm(_Part):
    """What was found of an arm."""

    name: str
    algorithms: list[str]
    settings_tried: int
    setting: str
    values: dict[str, Value]
    cost: Cost
    ladder: list[Rung]
    to_target: dict[str, Target]


class Run(_Part):
    """A run of the study; `folder` is relative to the study's."""

    name: str
    length: str | None
    seed: int
    folder: str
    status: str
    error: str
    values: dict[str, Number | None]
    seconds: Number | None


class StudyData(_Part):
    """A study as it is on the disk: its folder, and what `study.json` holds, see `docs/reference/study-format.md`."""

    folder: Path
    written: str
    baseline: str
    seeds: list[int]
    lengths: list[str | None]
    report: list[str]
    target: dict[str, Number]
    lower_is_better: dict[str, bool | None]
    units: dict[str, str]
    devices: list[str]
    versions: dict[str, str]
    notes: list[str]
    arms: list[Arm]
    runs: list[Run]

    @model_validator(mode="after")
    def _is_whole(self) -> StudyData:
        if self.baseline not in {arm.name for arm in self.arms}:
            raise ValueError("no arm is the baseline")
        if any(name not in arm.values for arm in self.arms for name in self.report):
            raise ValueError("an arm lacks a reported value")
        if not {"seconds", "compute"} <= self.units.keys():
            raise ValueError("a unit is missing")
        return self


def is_study(path: Path) -> bool:
    """Is this a study's folder?"""
    return why_not(path / NAME, MOST_BYTES_OF_JSON, follow=True) != ""


def read_study(folder: Path | str) -> StudyData:
    """Return what a study found, given its folder. Its runs are not read.

    Raises:
        ArgumentError: (a ValueError) if it is missing, damaged, or of a newer engine-core-study.
    """
    folder = path_of(folder)
    if not is_study(folder):
        raise ArgumentError(f"{str(folder)!r} holds no {NAME}: it is not a study's folder, or no run has ended in it")
    file = folder / NAME
    told = read_json(file)
    if not isinstance(told, dict) or type(told.get("schema")) is not int:
        raise ArgumentError(f"{str(file)!r} is not what a study found: it has no schema number")
    if told["schema"] != SCHEMA:
        raise ArgumentError(
            f"{str(file)!r} has schema {told['schema']!r:.80}, this engine-core-report reads schema {SCHEMA}; install "
            "a newer one"
        )
    try:
        return StudyData.model_validate({**told, "folder": folder})
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f"{escaped('.'.join(map(str, part)))}: " for part in [first["loc"]] if part)
        raise ArgumentError(
            f"{str(file)!r} is damaged: {where}{first['msg'].removeprefix('Value error, ')}; "
            "the study's command writes it anew"
        ) from None
