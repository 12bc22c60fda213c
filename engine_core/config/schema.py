"""A whole config file, read and checked. Knows what a config may say, not what it means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)

from ..errors import ConfigError
from .overrides import apply_overrides
from .reading import Place, SourceFile, read_yaml
from .sections import (
    BatchSettings,
    CheckpointSettings,
    EventName,
    PassEntry,
    PluginEntry,
    ResultSettings,
    ScheduleEntry,
    Section,
    Target,
    TrainerSettings,
    is_requirement,
    named,
    off,
    problems,
)

Plugins = list[Annotated[PluginEntry, BeforeValidator(named)]]


class Config(Section, BaseModel):  # the second for ruff, as above Section
    """A run, described by a file.

    Args:
        model: what makes the model; called after the seed is set.
        data, eval_data: what makes a loader; `eval_data` may be a mapping of labels to such.
        loss: a class is called with `args`, an `Objective` such as `engine_core:ModelLoss` too; a function is the loss
            itself, with `args` bound to it.
        batches: what a row of a batch is, and what counts its tokens, where the tensors of a batch do not tell.
        metrics: metrics by name; `results`: of which the lower or the higher value is better, if not by their names.
        optimizer: called with the parameters, then `args`; a scheduler with the optimizer, then `args`.
        checkpoints: what the run saves in its folder; false: nothing.
        trainer: settings of the Trainer.
        algorithms, callbacks, loggers: plugins by name or target, in the order in which they are listed.
        passes: the user's own passes; `order`: a table of events and algorithm names, applied after them.
        require_plugins: distributions that have to be installed, as in `some-plugin>=1.2`.

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
    optimizer: Target
    loss: Target | None = None
    eval_data: dict[str, Target] = {}
    batches: BatchSettings = BatchSettings.model_construct()
    metrics: dict[str, Target] = {}
    results: ResultSettings = ResultSettings.model_construct()
    schedulers: list[ScheduleEntry] = []
    checkpoints: Annotated[CheckpointSettings, BeforeValidator(off)] = CheckpointSettings.model_construct()
    trainer: TrainerSettings = TrainerSettings.model_construct()
    algorithms: Plugins = []
    callbacks: Plugins = []
    loggers: Plugins = []
    passes: list[Annotated[PassEntry, BeforeValidator(named)]] = []
    order: dict[EventName, list[str]] = {}
    require_plugins: list[Annotated[str, AfterValidator(is_requirement)]] = []

    _source: SourceFile = PrivateAttr(default=SourceFile())

    @model_validator(mode="before")
    @classmethod
    def _empty_is_absent(cls, values: Any) -> Any:
        """A key without a value, as when all its lines are commented out, counts as absent."""
        return {k: v for k, v in values.items() if v is not None} if isinstance(values, dict) else values

    @field_validator("eval_data", mode="before")
    @classmethod
    def _one_loader(cls, value: Any) -> Any:
        return {"eval": value} if isinstance(value, dict) and "target" in value else value

    def model_post_init(self, context: Any) -> None:
        """Take the source file from the validation context."""
        self._source = context or SourceFile()

    def place(self, *keys: str | int) -> Place:
        """Return where a value is in the file, for messages."""
        return Place(self._source, keys)


def load_config(path: Path | str, overrides: Iterable[str] = ()) -> Config:
    """Read and check a config file; nothing that it names is imported.

    Args:
        overrides: changes to make first, in order, as `--set` takes them: `"optimizer.args.lr=1e-3"`.

    Raises:
        ConfigError: (a ValueError) with one line for each problem: file, line, key, what is wrong, the nearest name.
    """
    values, source = read_yaml(path)
    if not isinstance(values, dict):
        what = "is empty" if values is None else f"holds a {_KINDS.get(type(values), 'single value')}"
        raise ConfigError(f"{source.file}: the file {what}; a config is a mapping with the keys model, data, optimizer")
    values, source = apply_overrides(values, source, overrides)
    return _checked(values, source, source)


def check_config(values: Mapping[str, Any], file: str) -> Config:
    """Return the config that these values make.

    Raises:
        ConfigError: (a ValueError) with a line for each problem, in which the file is named.
    """
    return _checked(values, SourceFile(file), SourceFile(file))


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
    return _checked(values, config.place().source, SourceFile())


_KINDS = {list: "list", str: "text", int: "number", float: "number"}


def _checked(values: Mapping[str, Any], source: SourceFile, blamed: SourceFile) -> Config:
    """Return the config; problems are reported with the lines of `blamed`."""
    try:
        return Config.model_validate(dict(values), context=source)
    except ValidationError as error:
        raise ConfigError("\n".join(problems(error.errors(), blamed))) from None
