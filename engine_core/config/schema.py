"""A config file: its keys, the types of their values, and how a problem with one is worded.

Knows what a config may say, not what it means.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from ..errors import ConfigError, did_you_mean
from ..event import Event
from ..metadata import PlainModel
from ..registry import parse_requirement
from ..time import Time, as_number
from .reading import LONGEST, Place, SourceFile


class Section(PlainModel, BaseModel):  # the second for ruff, which allows mutable defaults in pydantic models only
    """A mapping with known keys only; values keep the type they have in the file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @classmethod
    def _in_words(cls, error: ValidationError) -> str:
        return "\n".join(_problems(error.errors(), SourceFile()))

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            keys = ", ".join(cls.model_fields)
            problem = f"has to be a mapping ({keys}), not {values!r:.{LONGEST}}"
            raise PydanticCustomError("keys", "{problem}", {"problem": problem})
        for key in values:
            if key not in cls.model_fields:
                raise PydanticCustomError("keys", "{problem}", {"key": str(key), "problem": _unknown(key, cls)})
        return {key: as_number(value) for key, value in values.items()}


def _unknown(key: object, section: type[BaseModel]) -> str:
    if "trainer" in section.model_fields and key in TrainerSettings.model_fields:
        return f"unknown key here; it belongs under trainer: write it as trainer.{key}"
    return f"unknown key{did_you_mean(str(key), section.model_fields)}"


def _is_target(target: str) -> str:
    if not re.fullmatch(r"[^\W\d][\w.]*:[^\W\d][\w.]*", target):
        module, _, attribute = target.rpartition(".")
        is_near = len(target) <= LONGEST and ("." in module or module.isidentifier())
        hint = f"; did you mean {f'{module}:{attribute}'!r}?" if is_near else ""
        raise ValueError(f"has to be 'module:attribute', as in 'torch.nn:Linear', not {target!r}{hint}")
    return target


def _is_duration(value: object) -> str:
    try:
        length = Time(value)  # type: ignore[arg-type]
    except TypeError as error:
        raise ValueError(str(error)) from None
    if length.value <= 0:
        raise ValueError(f"has to be longer than zero, not {value!r}")
    return str(value)


def _text(pattern: str, what: str) -> AfterValidator:
    """Return what refuses a text that the pattern does not match."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text) or not text.isprintable():
            raise ValueError(f"has to be {what}, not {text!r}")
        return text

    return AfterValidator(check)


S = TypeVar("S", bound=Section)
Duration = Annotated[str, BeforeValidator(_is_duration)]
EventName = Annotated[str, AfterValidator(lambda name: Event(name).value)]
TargetName = Annotated[str, AfterValidator(_is_target)]


# A bare name stands for `{name: ...}`, one loader for that of the label eval, one path for a list, false for no saves.
_named = BeforeValidator(lambda entry: {"name": entry} if isinstance(entry, str) else entry)
_labelled = BeforeValidator(lambda value: {"eval": value} if isinstance(value, dict) and "target" in value else value)
_listed = BeforeValidator(lambda value: [value] if isinstance(value, (str, int)) else value)
_off = BeforeValidator(lambda value: {"every": None} if value is False else value)


class Target(Section):
    """Something to import and call: `{target: "module:attribute", args: {...}}`."""

    target: TargetName
    args: dict[str, Any] = {}


class ScheduleEntry(Target):
    """A learning rate scheduler, and how often it steps; once an epoch by default."""

    interval: Duration = "1ep"


class OptimizerEntry(Target):
    """What makes the optimizer; or what makes each of several, `by_name` of their parameters."""

    target: TargetName = ""
    by_name: dict[str, Target] = {}

    @model_validator(mode="after")
    def _one_of_both(self) -> OptimizerEntry:
        if bool(self.target) == bool(self.by_name) or (self.args and self.by_name):
            raise ValueError("give a target 'module:attribute' with its args, or a mapping by_name with targets")
        return self


class PluginEntry(Section):
    """An installed plugin by name, or a class of your own by target, with its arguments."""

    name: str | None = None
    target: TargetName | None = None
    args: dict[str, Any] = {}

    @model_validator(mode="after")
    def _one_of_both(self) -> PluginEntry:
        if (self.name is None) == (self.target is None):
            given = "has both name and target" if self.name is not None else "has neither name nor target"
            raise ValueError(f"{given}; give the name of an installed plugin or a target 'module:attribute'")
        return self


class PassEntry(PluginEntry):
    """A user's pass: an installed one by name, or a function by target; `index` is its place."""

    index: int = -1


class RecipeEntry(Section):
    """The recipe that a config was made with, for the record: what it adds is in the config already."""

    name: str
    distribution: str
    version: str


Paths = Annotated[list[str | int], _listed]


class BatchSettings(Section):
    """What a row of a batch is, and what counts its tokens, see `engine_core.Batches`; functions by target."""

    shared: Paths = []
    per_row: Paths = []
    samples: bool = False
    dim: dict[str | int, int] = {}
    count: TargetName | None = None
    take: TargetName | None = None
    tokens: TargetName | None = None


class ParallelSettings(Section):
    """How the run is spread over the processes that torchrun starts, see `engine_core.parallel`."""

    name: Literal["ddp", "fsdp"]
    blocks: list[str] = []
    data: Literal["global", "local"] = "global"
    timeout: Duration = "10m"
    args: dict[str, Any] = {}

    @model_validator(mode="after")
    def _blocks_are_for_fsdp(self) -> ParallelSettings:
        if self.blocks and self.name == "ddp":
            raise ValueError("blocks are for fsdp; ddp has the whole model in each process")
        return self


def _is_spread(value: object) -> object:
    """Let `none` stand for null, and a bare name for `{name: ...}`."""
    if value in ("none", None):
        return None
    if isinstance(value, str) and value != "auto":
        if value not in ("ddp", "fsdp"):
            known = ("auto", "ddp", "fsdp", "none")
            raise ValueError(f"has to be auto, ddp, fsdp or none, not {value!r}{did_you_mean(value, known)}")
        return {"name": value}
    return value


class TrainerSettings(Section):
    """Settings of `Trainer`, under the same names."""

    max_duration: Duration | None = None
    eval_interval: Duration = "1ep"
    microbatch_size: Annotated[int, Field(gt=0)] | None = None
    grad_clip_norm: Annotated[float, Field(gt=0)] | None = None
    precision: Literal["fp32", "amp_bf16", "amp_fp16"] = "fp32"
    device: Annotated[str, _text(r"auto|cpu|mps|cuda(:\d+)?", "auto, cpu, cuda, cuda:1 or mps")] = "auto"
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    progress_bar: Literal["auto", "lines", True, False] = "auto"
    run_name: Annotated[str, _text(r"(?!\.\.?$)[^/\\\s]+", "a folder's name, without spaces and slashes")] | None = None
    load_path: str | None = None
    autoresume: bool = False
    load_weights_only: bool = False
    load_strict: bool = True
    load_changed: Literal["error", "warn", "adopt"] = "warn"
    parallel: Annotated[Literal["auto"] | ParallelSettings | None, BeforeValidator(_is_spread)] = "auto"


class CheckpointSettings(Section):
    """What a run saves in its folder: how often, how many of the latest stay, and by which result the best one.

    Without an `every` it saves nothing, and so it does for `checkpoints: false`.
    """

    every: Duration | None = "1ep"
    keep_last: Annotated[int, Field(gt=0)] | None = 1
    keep_best: str | None = None


class ResultSettings(Section):
    """Results, each `<label>/<metric>` or a metric of all loaders, of which the lower or the higher value is better."""

    lower: list[str] = []
    higher: list[str] = []


Plugins = list[Annotated[PluginEntry, _named]]


class Config(Section, BaseModel):  # the second for ruff, as above Section
    """A run, described by a file.

    Args:
        model: what makes the model; called after the seed is set.
        data, eval_data: what makes a loader; `eval_data` may be a mapping of labels to such.
        loss: a class is called with `args`, an `Objective` such as `engine_core:ModelLoss` too; a function is the loss
            itself, with `args` bound to it.
        batches: what a row of a batch is, and what counts its tokens, where the tensors of a batch do not tell.
        metrics: metrics by name; `results`: of which the lower or the higher value is better, if not by their names.
        optimizer: called with the parameters, then `args`; a scheduler with the optimizer, then `args`. Several have
            `by_name`, a mapping as `engine_core.by_name` takes it, with targets.
        checkpoints: what the run saves in its folder; false: nothing.
        trainer: settings of the Trainer.
        algorithms, callbacks, loggers: plugins by name or target, in the order in which they are listed.
        passes: the user's own passes; `order`: a table of events and algorithm names, applied after them.
        require_plugins: distributions that have to be installed, as in `some-plugin>=1.2`.
        recipe: the recipe that was merged into it; in a file its name, by which `load_config` merges it.

    Example:
        >>> Config(
        ...     model={"target": "torch.nn:Linear", "args": {"in_features": 2, "out_features": 1}},
        ...     data={"target": "my_data:make_loader"},
        ...     optimizer={"target": "torch.optim:SGD", "args": {"lr": 0.1}},
        ...     trainer={"max_duration": "2ep"},
        ... ).trainer.max_duration
        '2ep'
    """

    model: Target
    data: Target
    optimizer: OptimizerEntry
    loss: Target | None = None
    eval_data: Annotated[dict[str, Target], _labelled] = {}
    batches: BatchSettings = BatchSettings.model_construct()
    metrics: dict[str, Target] = {}
    results: ResultSettings = ResultSettings.model_construct()
    schedulers: list[ScheduleEntry] = []
    checkpoints: Annotated[CheckpointSettings, _off] = CheckpointSettings.model_construct()
    trainer: TrainerSettings = TrainerSettings.model_construct()
    algorithms: Plugins = []
    callbacks: Plugins = []
    loggers: Plugins = []
    passes: list[Annotated[PassEntry, _named]] = []
    order: dict[EventName, list[str]] = {}
    require_plugins: list[Annotated[str, AfterValidator(lambda text: str(parse_requirement(text)))]] = []
    recipe: RecipeEntry | None = None

    _source: SourceFile = PrivateAttr(default=SourceFile())

    @model_validator(mode="before")
    @classmethod
    def _empty_is_absent(cls, values: Any) -> Any:
        """A key without a value, as when all its lines are commented out, counts as absent."""
        return {k: v for k, v in values.items() if v is not None} if isinstance(values, dict) else values

    def model_post_init(self, context: Any) -> None:
        """Take the source file from the validation context."""
        self._source = context or SourceFile()

    def place(self, *keys: str | int) -> Place:
        """Return where a value is in the file, for messages."""
        return Place(self._source, keys)

    def entries(self, *sections: str) -> Iterator[tuple[Any, Place]]:
        """Yield what sections list or name, each with its place, whose last key is its index or its name."""
        for section in sections:
            value = getattr(self, section)
            for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
                yield entry, self.place(section, key)


def check_config(values: Mapping[str, Any], file: str) -> Config:
    """Return the config that these values make.

    Raises:
        ConfigError: (a ValueError) with a line for each problem, in which the file is named.
    """
    return validated(Config, values, SourceFile(file), SourceFile(file))


def override(config: Config, checkpoints: Mapping[str, Any] | Literal[False] | None = None, **settings: Any) -> Config:
    """Return the config with settings of checkpoints and trainer replaced; those that are None stay as they are.

    Raises:
        ConfigError: (a ValueError) if a setting is unknown or has an impossible value.
    """
    given = {name: value for name, value in settings.items() if value is not None}
    values = config.model_dump(exclude_unset=True)
    values["trainer"] = {**values.get("trainer", {}), **given}
    if checkpoints is False:
        values["checkpoints"] = False
    elif more := {name: value for name, value in (checkpoints or {}).items() if value is not None}:
        before = values.get("checkpoints", {})
        values["checkpoints"] = {**{k: v for k, v in before.items() if (k, v) != ("every", None)}, **more}
    return validated(Config, values, config.place().source, SourceFile())


def validated(kind: type[S], values: Any, source: SourceFile, blamed: SourceFile) -> S:
    """Return the section that these values make, `source` being its context.

    Raises:
        ConfigError: (a ValueError) with a line for each problem: its line in `blamed`, its key, what is wrong with it.
    """
    try:
        return kind.model_validate(values, context=source)
    except ValidationError as error:
        raise ConfigError("\n".join(_problems(error.errors(), blamed))) from None


def _problems(details: Iterable[ErrorDetails], source: SourceFile) -> list[str]:
    """Return a line for each problem, in the order of the file."""
    errors = []
    for detail in details:
        context = detail.get("ctx", {})
        keys = [key for key in detail["loc"] if key != "[key]"]
        if "key" in context:
            keys.append(context["key"])
        place = Place(source, tuple(keys))
        nodes = place.nodes()
        line = nodes[-1].origin if len(nodes) > len(place.keys) else 0
        order = sys.maxsize if isinstance(line, str) else line or 0  # overrides after the file
        errors.append((order, str(place.error(_wording(detail)))))
    return [message for _, message in sorted(errors, key=lambda item: item[0])]


def _wording(detail: ErrorDetails) -> str:
    if detail["type"] == "missing":
        return "this key is missing"
    if detail["type"] == "keys":
        return detail["msg"]
    if "error" in detail.get("ctx", {}):
        return str(detail["ctx"]["error"])
    return f"{re.sub('^(Input|String) should', 'has to', detail['msg'])}, not {detail['input']!r:.{LONGEST}}"
