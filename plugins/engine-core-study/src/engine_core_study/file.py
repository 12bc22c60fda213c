"""The file of a study, and the command line's short forms, read and checked before anything trains. No torch."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, create_model

from engine_core.arguments import path_of
from engine_core.config import (
    Config,
    ConfigError,
    Place,
    PluginEntry,
    Section,
    SourceFile,
    check_config,
    check_plugins,
    load_config,
    read_yaml,
    validated,
)
from engine_core.errors import did_you_mean
from engine_core.time import Time, TimeUnit

from .design import Arm, Design, Setting

MAX_DURATION = "trainer.max_duration"
MOST_SEEDS = 1000
"""More are a seed that was taken for a number of seeds."""
TUNE_SEED = 9999
"""The seed that chooses settings; it does not follow from `seeds`, so that more seeds leave what was tuned as it is."""
Values = list[Any]
Whole = Annotated[int, Field(ge=0, lt=2**63)]
_named = BeforeValidator(lambda entry: {"name": entry} if isinstance(entry, str) else entry)
_listed = BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
Names = Annotated[list[str], _listed]


def seeds_of(value: object) -> list[int]:
    """Return the seeds that a number or a list stands for, each once.

    Raises:
        ValueError: with what is wrong, as the end of a sentence.
    """
    if type(value) is int and value > MOST_SEEDS:
        raise ValueError(f"asks for {value} seeds, and {MOST_SEEDS} is the most; for this one seed write [{value}]")
    listed = list(range(value)) if type(value) is int else value
    if not isinstance(listed, list) or not listed or not all(type(each) is int and each >= 0 for each in listed):
        raise ValueError(f"has to be a number of seeds, such as 5, or a list of whole numbers, not {value!r:.80}")
    return list(dict.fromkeys(listed))


Changes = dict[str, Any] | Names
Added = Annotated[
    list[Annotated[PluginEntry, _named]],
    BeforeValidator(lambda value: [value] if isinstance(value, (str, dict)) else value),
]
# Three of its keys are words of Python, which no class can have as attributes.
_KEYS: dict[str, Any] = {"from": (str | None, None), "with": (Added, []), "without": (Names, []), "set": (Changes, {})}
ArmEntry: Any = create_model("ArmEntry", __base__=Section, **_KEYS)
ArmEntry.__doc__ = (
    "What an arm changes: algorithms that it adds (`with`) and takes out (`without`), and values (`set`)."
)


class StudyFile(Section, BaseModel):  # the second for ruff, which allows mutable defaults in pydantic models only
    """The keys of a study's file, see `docs/studies.md`."""

    base: str
    set: Changes = {}
    seeds: Annotated[list[int], BeforeValidator(seeds_of)] = [0, 1, 2, 3, 4]
    baseline: str | None = None
    arms: dict[str, Annotated[ArmEntry, BeforeValidator(lambda value: {} if value is None else value)]] = {}
    leave_one_out: str | None = None
    tune: dict[
        str, Annotated[Values, BeforeValidator(lambda value: value if isinstance(value, list) else [value])]
    ] = {}
    tune_seed: Whole | None = None
    choose_by: str | None = None
    report: Names = []
    target: dict[str, float] = {}
    compute: Literal["row passes", "tokens"] = "row passes"
    budget: Any = None


def read_study(path: Path | str) -> Design:
    """Return the study that a file describes; nothing that it names is imported.

    Raises:
        ConfigError: (a ValueError) with the line, the key and what is wrong with it.
    """
    source = read_yaml(path)
    return design_of(validated(StudyFile, source.root.plain(), source, source), source)


def design_of(file: StudyFile, source: SourceFile) -> Design:
    """Return the study that these values describe; problems are reported with the lines of `source`."""
    return _Reader(file, source).design()


def is_study(path: Path) -> bool:
    """Is this the file of a study, and not a run's config?"""
    values = read_yaml(path).root.plain()
    return isinstance(values, dict) and not values.keys().isdisjoint(("base", "arms"))


def short_study(
    base: Path,
    seeds: int | None = None,
    with_: Sequence[str] = (),
    without: Sequence[str] = (),
    changes: Sequence[str] = (),
    *,
    leave_one_out: bool = False,
) -> Design:
    """Return the study of a config and changes to it, each an arm beside the config as it is, called `base`.

    Args:
        changes: as `--set` takes them, with several values: `optimizer.args.lr=0.1,0.2` makes two arms.

    Raises:
        ConfigError: (a ValueError) with what is wrong.
    """
    arms: dict[str, Any] = {"base": {}}
    arms |= {f"with {name}": {"with": [name]} for name in with_}
    arms |= {f"without {name}": {"without": [name]} for name in without}
    arms |= {text: {"set": [text]} for change in changes for text in _split(change)}
    if empty := next((text for text in arms if text.endswith("=")), None):
        raise ConfigError(f"--set {empty}: there is no value; write --set {empty}'' for an empty text")
    values: dict[str, Any] = {"base": str(base.absolute()), "arms": arms}
    values |= {} if seeds is None else {"seeds": seeds}
    values |= {"leave_one_out": "base"} if leave_one_out else {}
    source = SourceFile()
    return design_of(validated(StudyFile, values, source, source), source)


def _split(change: str) -> list[str]:
    """Return `key=a,b` as `key=a` and `key=b`; commas in brackets and quotes don't split."""
    key, equals, text = change.partition("=")
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote or character in "\"'":
            quote = ("" if character == quote else quote) if quote else character
        depth += (not quote) * ((character in "[{") - (character in "]}"))
        if character == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += character
    return [f"{key}{equals}{part}" for part in parts]


class _Reader:
    """Makes the design of a file."""

    def __init__(self, file: StudyFile, source: SourceFile) -> None:
        self._file, self._source = file, source
        path = path_of(file.base)
        self._base = path if path.is_absolute() else Path(source.file or ".").parent / path
        try:
            load_config(self._base)
        except ConfigError as error:
            raise self._at("base").error(str(error)) if source.file else error from error
        self._texts = self._overrides_of()

    def design(self) -> Design:
        """Return the study."""
        file, configs = self._file, {name: self._config(name, texts) for name, texts in self._texts.items()}
        labels = {name: results_of(config) for name, config in configs.items()}
        report = tuple(file.report) or tuple(dict.fromkeys(itertools.chain(*labels.values())))
        for key, names in (("report", file.report), ("choose_by", [file.choose_by]), ("target", file.target)):
            for index, name in enumerate(names):
                if name is not None:
                    self._check_result(name, key, index, labels)
        if not report:
            raise self._at("base").error("no evaluation has a result to report: give eval_data in the base")
        lengths, grid = self._tuned()
        if grid and file.choose_by is None:
            raise self._at("tune").error("choose_by is missing: name the result that chooses, such as val/loss")
        arms = tuple(Arm(name, self._settings(name, grid)) for name in configs)
        self._check_arms(arms)
        return Design(
            base=str(self._base),
            arms=arms,
            baseline=self._baseline(configs),
            seeds=tuple(file.seeds),
            report=report,
            lengths=lengths,
            choose_by=file.choose_by,
            tune_seed=self._tune_seed(),
            target=dict(file.target),
            compute=file.compute,
            budget_s=self._budget(),
        )

    def _at(self, *keys: str | int) -> Place:
        return Place(self._source, keys)

    def _overrides_of(self) -> dict[str, list[str]]:
        """Return the changes to the base that make each arm, as `--set` takes them."""
        file = self._file
        common = _changes(file.set)
        made: dict[str, list[str]] = {}

        def texts(name: str, around: tuple[str, ...] = ()) -> list[str]:
            entry, origin = file.arms[name], getattr(file.arms[name], "from")
            if origin is not None and (origin not in file.arms or origin in (*around, name)):
                problem = "leads back to itself" if origin in (*around, name) else "is not an arm"
                near = did_you_mean(origin, file.arms) if origin not in file.arms else ""
                raise self._at("arms", name, "from").error(f"{origin!r} {problem}{near}")
            start = common if origin is None else texts(origin, (*around, name))
            taken = ["algorithms=[]" if each == "all" else f"algorithms-={json.dumps(each)}" for each in entry.without]
            added = [each.model_dump(exclude_unset=True) for each in getattr(entry, "with")]
            more = [f"algorithms+={json.dumps([each])}" for each in added]
            return [*start, *taken, *more, *_changes(entry.set)]

        for name in file.arms:
            made[name] = texts(name)
        if (whole := file.leave_one_out) is not None:
            if whole not in made:
                raise self._at("leave_one_out").error(f"{whole!r} is not an arm{did_you_mean(whole, made)}")
            listed = [each.name or each.target or "" for each in self._config(whole, made[whole]).algorithms]
            if not listed:
                raise self._at("leave_one_out").error(f"arm {whole!r} has no algorithm to leave out")
            made |= {f"{whole} without {each}": [*made[whole], f"algorithms-={json.dumps(each)}"] for each in listed}
        if len(made) < 2:
            raise self._at("arms").error("a study needs two arms or more: name what to compare")
        return made

    def _config(self, name: str, texts: Iterable[str]) -> Config:
        place = self._at("arms", name) if name in self._file.arms else self._at("leave_one_out")
        try:
            config = load_config(self._base, texts)
            check_plugins(config)
        except ConfigError as error:
            raise place.error(f"arm {name!r}: {error}") from error
        listed = [each.name or each.target for each in config.algorithms]
        if twice := next((each for each in listed if listed.count(each) > 1), None):
            raise place.error(f"arm {name!r} has {twice!r} twice: change its arguments by `set`, or leave it out first")
        return config

    def _check_arms(self, arms: Iterable[Arm]) -> None:
        """Raise if two arms train the same: in all their settings, but for what the study sets itself."""
        seen: dict[str, str] = {}
        lengths = ["max_duration"] if MAX_DURATION in self._file.tune else []
        for arm in arms:
            said = [check_config(setting.config, str(self._base)).model_dump() for setting in arm.settings]
            for config in said:
                for key in ("seed", "run_name", "progress_bar", *lengths):
                    del config["trainer"][key]
            if (other := seen.setdefault(json.dumps(said, sort_keys=True, default=str), arm.name)) != arm.name:
                place = self._at("arms", arm.name) if arm.name in self._file.arms else self._at("leave_one_out")
                raise place.error(f"arm {arm.name!r} is equal to arm {other!r}: take one out, or change it")

    def _check_result(self, name: str, key: str, index: int, results: Mapping[str, list[str]]) -> None:
        for arm, known in results.items():
            if not any(name == each or name.startswith(f"{each}/") for each in known):
                keys = [key] if key == "choose_by" else [key, name] if key == "target" else [key, index]
                near = did_you_mean(name, known)
                raise self._at(*keys).error(f"no evaluation of arm {arm!r} gives a result {name!r}{near}")

    def _tuned(self) -> tuple[tuple[str | None, ...], dict[str, Values]]:
        """Return the lengths, the shortest first, and what else is tuned."""
        grid = dict(self._file.tune)
        lengths = [str(each) for each in grid.pop(MAX_DURATION, ())]
        for key, values in self._file.tune.items():
            if not values:
                raise self._at("tune", key).error("has no value: list what to try")
        try:
            found = [Time(length) for length in lengths]
        except (ValueError, TypeError) as error:
            raise self._at("tune", MAX_DURATION).error(str(error)) from None
        if len({length.unit for length in found}) > 1:
            raise self._at("tune", MAX_DURATION).error("the lengths have to share a unit, as in [2ep, 4ep]")
        ordered = [length for _, length in sorted(zip([each.value for each in found], lengths, strict=True))]
        return tuple(dict.fromkeys(ordered)) or (None,), grid

    def _settings(self, name: str, grid: Mapping[str, Values]) -> tuple[Setting, ...]:
        """Return the settings of an arm: all combinations of the values of the keys that it has."""
        own = {key: values for key, values in grid.items() if self._has(name, key, values[0])}
        found = []
        for values in itertools.product(*own.values()):
            texts = [f"{key}={json.dumps(value)}" for key, value in zip(own, values, strict=True)]
            config = self._config(name, [*self._texts[name], *texts])
            label = ", ".join(f"{key}={value}" for key, value in zip(own, values, strict=True))
            found.append(Setting(label, config.model_dump(exclude_unset=True)))
        return tuple(found)

    def _has(self, name: str, key: str, value: Any) -> bool:
        """Can this key be changed in an arm? If it can in none, say so with the line."""
        problems = []
        for arm in dict.fromkeys([name, *self._texts]):
            try:
                load_config(self._base, [*self._texts[arm], f"{key}={json.dumps(value)}"])
            except ConfigError as error:
                problems.append(str(error))
            else:
                return arm == name
        raise self._at("tune", key).error(f"no arm has this key: {problems[0]}")

    def _tune_seed(self) -> int:
        """Return the seed that chooses: none that is reported, unless the file says so."""
        if self._file.tune_seed is not None:
            return self._file.tune_seed
        return next(seed for seed in itertools.count(TUNE_SEED) if seed not in self._file.seeds)

    def _baseline(self, arms: Iterable[str]) -> str:
        arms, given = list(arms), self._file.baseline
        if given is not None and given not in arms:
            raise self._at("baseline").error(f"{given!r} is not an arm{did_you_mean(given, arms)}")
        return arms[0] if given is None else given

    def _budget(self) -> float | None:
        if self._file.budget is None:
            return None
        with suppress(ValueError, TypeError):
            length = Time(self._file.budget)
            if length.unit is TimeUnit.SECOND:
                return float(length.value)
        raise self._at("budget").error(f"has to be a time, as in 2h or 90m, not {self._file.budget!r:.80}")


def _changes(given: Mapping[str, Any] | Sequence[str]) -> list[str]:
    if isinstance(given, Mapping):
        return [f"{key}={json.dumps(value)}" for key, value in given.items()]
    return list(given)


def results_of(config: Config) -> list[str]:
    """Return the names of the results that a config's evaluations give; a metric of several values adds to its own."""
    metrics = [*(["loss"] if config.loss is not None else []), *config.metrics]
    return [f"{label}/{metric}" for label in config.eval_data for metric in metrics]


__all__ = ["StudyFile", "design_of", "is_study", "read_study", "results_of", "seeds_of", "short_study"]
