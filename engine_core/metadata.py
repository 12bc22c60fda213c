"""What a plugin declares about itself, validated by pydantic. A leaf: it declares, others decide."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from .errors import did_you_mean
from .event import HOOK_API, Event

__all__ = ["AlgorithmMetadata", "PassMetadata", "Stage", "StrictModel"]

Stage = Literal["direction", "placement", "check"]
"""When a pass runs: `direction` turns the list, `placement` puts algorithms in their place, `check` looks."""

STAGES: tuple[Stage, ...] = ("direction", "placement", "check")

WRITABLE = ("batch", "outputs", "loss", "model", "optimizers", "schedulers", "metrics", "loss_fn")


class StrictModel(BaseModel):
    """A frozen pydantic model that refuses unknown fields and names the nearest known one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, values: Any) -> Any:
        if isinstance(values, dict):
            for name in values:
                if name not in cls.model_fields:
                    raise ValueError(f"unknown field {name!r}{did_you_mean(str(name), cls.model_fields)}")
        return values


def _is_name(name: str) -> str:
    if not name or set(name) & set(" \t\n@:,/"):
        raise ValueError(f"{name!r} can't be a name: it must not be empty nor hold spaces, '@', ':', ',' or '/'")
    return name


def _is_reference(reference: str) -> str:
    _is_name(reference.removeprefix("@"))
    return reference


def _is_field(field: str) -> str:
    if field not in WRITABLE:
        raise ValueError(f"{field!r} is no State field that an algorithm writes{did_you_mean(field, WRITABLE)}")
    return field


def _to_event(event: object) -> object:
    return Event(event) if isinstance(event, str) else event


def _known_api(number: int) -> int:
    if number != HOOK_API:
        raise ValueError(f"made for hook API {number}, this engine-core has {HOOK_API}: install matching versions")
    return number


Name = Annotated[str, AfterValidator(_is_name)]
Tag = Annotated[str, AfterValidator(lambda tag: _is_name(tag.removeprefix("@")))]
Reference = Annotated[str, AfterValidator(_is_reference)]
if TYPE_CHECKING:  # names may be given; what is kept are always events
    Events = tuple[Event | str, ...]
else:
    Events = tuple[Annotated[Event, BeforeValidator(_to_event)], ...]


class AlgorithmMetadata(StrictModel):
    """What an algorithm declares: when it may run, what it changes, and its place among others.

    Args:
        name: the registered name; default: the class's name in snake case.
        description: one sentence for lists.
        events: the events at which `match` is asked; None: all of them.
        tags: what it is, as in `augmentation`; others refer to it as `@augmentation`.
        before, after: names or `@tags` of algorithms that run later, or earlier, on every event that both list.
            Absent ones are no constraint.
        requires, conflicts: names or `@tags` that must, or must not, be in the same engine.
        writes: the State fields that it changes; `()`: none; None: not declared.
        hook_api: the number of the hook API it is written for.

    Example:
        >>> AlgorithmMetadata(events=("before_loss",), tags=("loss",)).events
        (<Event.BEFORE_LOSS: 'before_loss'>,)
    """

    name: Name | None = None
    description: str = ""
    events: Events | None = None
    tags: tuple[Tag, ...] = ()
    before: tuple[Reference, ...] = ()
    after: tuple[Reference, ...] = ()
    requires: tuple[Reference, ...] = ()
    conflicts: tuple[Reference, ...] = ()
    writes: tuple[Annotated[str, AfterValidator(_is_field)], ...] | None = None
    hook_api: Annotated[int, AfterValidator(_known_api)] = Field(default=HOOK_API)

    @model_validator(mode="after")
    def _not_against_itself(self) -> AlgorithmMetadata:
        for relation in ("before", "after", "conflicts"):
            if self.name is not None and self.name in getattr(self, relation):
                raise ValueError(f"{relation}: {self.name!r} names itself")
        if both := sorted({*self.before} & {*self.after}):
            raise ValueError(f"{both[0]!r} stands in both before and after")
        return self


class PassMetadata(StrictModel):
    """What a pass declares: its stage and its place among the other passes.

    Args:
        name: default: the function's name.
        description: one sentence for lists.
        stage: `direction` runs before `placement`, `placement` before `check`.
        before, after: names of passes of the same stage that run later, or earlier; absent ones are no constraint.
        events: the events at which it runs; None: all of them.
        pure: does its result depend on its arguments alone? Results of pure passes are remembered.
        changes_members: may it add or drop algorithms?
        hook_api: the number of the hook API it is written for.

    Example:
        >>> PassMetadata(stage="placement", after=("sort_b",), pure=False).stage
        'placement'
    """

    name: Name | None = None
    description: str = ""
    stage: Stage = "placement"
    before: tuple[Name, ...] = ()
    after: tuple[Name, ...] = ()
    events: Events | None = None
    pure: bool = True
    changes_members: bool = False
    hook_api: Annotated[int, AfterValidator(_known_api)] = Field(default=HOOK_API)
