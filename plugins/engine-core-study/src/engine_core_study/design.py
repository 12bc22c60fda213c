"""A study as data: its arms, their settings, and the runs in their order. Trains nothing."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine_core.errors import ArgumentError

LONGEST_SLUG = 60
"""Characters of a folder's name: a file system takes 255 bytes, of which a character may have four."""
Make = Callable[[int, list[Any]], Any]
"""Makes a Trainer from a seed and the algorithms of an arm."""


@dataclass(frozen=True)
class Setting:
    """One of the settings that an arm may train with.

    Args:
        label: what was tuned, as in `optimizer.args.lr=0.1`; empty without tuning.
        config: of a run; for a factory, `{"algorithms": [...]}`.
    """

    label: str
    config: Mapping[str, Any]


@dataclass(frozen=True)
class Arm:
    """What is compared: a name, and the settings to choose from; with one setting there is nothing to choose."""

    name: str
    settings: tuple[Setting, ...]

    @property
    def algorithms(self) -> list[str]:
        """The names of the arm's algorithms."""
        listed = self.settings[0].config.get("algorithms", ())
        return [(each.get("name") or each["target"]) if isinstance(each, dict) else _name_of(each) for each in listed]


def _name_of(given: Any) -> str:
    """Return the name of what a factory gets: a name, or a name and arguments."""
    return given if isinstance(given, str) else str(given[0])


@dataclass(frozen=True)
class Design:
    """A whole study.

    Args:
        base: the file of the config, for imports and messages; empty for a factory.
        baseline: the arm that others are compared with.
        lengths: each a `max_duration`, the shortest first; None: as the config or the factory says.
        report: the results that are reported; `choose_by`: the result that chooses a setting.
        target: results to reach, for the cost to reach them.
        compute: what is counted as compute, `row passes` or `tokens`.
        budget_s: seconds of training, after which no run begins.
        make: the factory, instead of a config.
    """

    base: str
    arms: tuple[Arm, ...]
    baseline: str
    seeds: tuple[int, ...]
    report: tuple[str, ...]
    lengths: tuple[str | None, ...] = (None,)
    choose_by: str | None = None
    tune_seed: int = 0
    target: Mapping[str, float] = field(default_factory=dict)
    compute: str = "row passes"
    budget_s: float | None = None
    make: Make | None = None

    def __post_init__(self) -> None:
        """Refuse arms whose runs would be in one folder, also where a file system takes no account of case."""
        seen: dict[str, str] = {}
        for arm in self.arms:
            slug = slug_of(arm.name)
            if (other := seen.setdefault(slug.lower(), arm.name)) != arm.name:
                raise ArgumentError(f"the arms {other!r} and {arm.name!r} would share the folder {slug!r}: rename one")

    def arm(self, name: str) -> Arm:
        """Return the arm of this name."""
        return next(arm for arm in self.arms if arm.name == name)

    def to_json(self) -> dict[str, Any]:
        """Return what makes the study's values what they are: with another one, finished runs don't count."""
        return {
            "arms": {arm.name: [_setting_in_json(each) for each in arm.settings] for arm in self.arms},
            "seeds": list(self.seeds),
            "lengths": list(self.lengths),
            **({"choose_by": self.choose_by, "tune_seed": self.tune_seed} if tuning_jobs(self) else {}),
        }


def _setting_in_json(setting: Setting) -> dict[str, Any]:
    return {**({"tuned": setting.label} if setting.label else {}), "config": dict(setting.config)}


@dataclass(frozen=True)
class Job:
    """One run of a study.

    Args:
        setting: which of the arm's.
        folder: of the run, relative to the study's.
        config: of the run, with seed, length and name; for a factory, `{"algorithms": [...]}`.
    """

    arm: str
    setting: int
    length: str | None
    seed: int
    folder: str
    base: str
    config: Mapping[str, Any]
    make: Make | None = None
    values: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What a progress screen calls it."""
        return run_name(self.arm, self.setting, self.length, self.seed, self.folder)


def tuning_jobs(design: Design) -> list[Job]:
    """Return the runs that choose a setting for each arm that has several, at the longest length, the arms in turns."""
    most = max(len(arm.settings) for arm in design.arms)
    several = [arm for arm in design.arms if len(arm.settings) > 1]
    return [
        _job(design, arm, index, design.lengths[-1], design.tune_seed, "tune")
        for index in range(most)
        for arm in several
        if index < len(arm.settings)
    ]


def reported_jobs(design: Design, chosen: Mapping[str, int]) -> list[Job]:
    """Return the runs that are reported: all of a seed before the next, arms in turns, baseline in their middle.

    Args:
        chosen: the index of each arm's setting.
    """
    others = [arm for arm in design.arms if arm.name != design.baseline]
    jobs = []
    for turn, seed in enumerate(design.seeds):
        for length in design.lengths:
            row = in_turn(others, turn)
            row.insert((len(row) + turn % 2) // 2, design.arm(design.baseline))
            jobs += [_job(design, arm, chosen[arm.name], length, seed, "runs") for arm in row if arm.name in chosen]
    return jobs


def in_turn(arms: Sequence[Arm], turn: int) -> list[Arm]:
    """Return the arms rotated, so that none is always first, and each comes to stand in the middle."""
    start = turn % len(arms) if arms else 0
    return [*arms[start:], *arms[:start]]


def _job(design: Design, arm: Arm, index: int, length: str | None, seed: int, kind: str) -> Job:
    setting = arm.settings[index]
    parts = [kind, slug_of(arm.name), *([f"setting-{index}"] if len(arm.settings) > 1 else [])]
    parts += [*([] if len(design.lengths) == 1 or length is None else [length]), f"seed-{seed}"]
    config = dict(setting.config)
    if design.make is None:
        given = {"seed": seed, "run_name": "-".join(parts[1:]), "progress_bar": False}
        config["trainer"] = {**config.get("trainer", {}), **given}
        if length is not None:
            config["trainer"]["max_duration"] = length
    values = dict.fromkeys((*design.report, *([design.choose_by] if design.choose_by else ()), *design.target))
    return Job(arm.name, index, length, seed, "/".join(parts), design.base, config, design.make, tuple(values))


def slug_of(name: str) -> str:
    """Return a folder's name for an arm, whichever others there are.

    Example:
        >>> slug_of("no mixup"), slug_of("lr=0.1")
        ('no-mixup', 'lr-0.1')
    """
    slug = re.sub(r"[^\w.]+", "-", name).strip("-.") or "arm"
    if len(slug) <= LONGEST_SLUG:
        return slug
    return f"{slug[: LONGEST_SLUG - 9]}-{hashlib.blake2b(name.encode(), digest_size=4).hexdigest()}"


def run_name(arm: str, setting: int, length: str | None, seed: int, folder: str) -> str:
    """Return what screens and notes call a run."""
    tuned = f"setting {setting}" if folder.startswith("tune/") else ""
    return ", ".join(filter(None, (arm, tuned, length, f"seed {seed}")))
