"""What a plugin declares about itself, validated by pydantic. A leaf: it declares, others decide."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictInt,
    ValidationError,
    model_validator,
)

from .errors import MetadataError, did_you_mean
from .event import HOOK_API, Event
from .messages import in_one_line
from .needs import NEEDS, WRITABLE

__all__ = ["AlgorithmMetadata", "PassMetadata", "PlainModel", "Stage", "StrictModel"]

Stage = Literal["direction", "placement", "check"]
"""When a pass runs: `direction` reverses the list, `placement` puts algorithms in place, `check` only looks."""

STAGES: tuple[Stage, ...] = ("direction", "placement", "check")

FIRST_HOOK_API = 1
"""The hook API of a plugin that does not declare one. It stays 1: its author knew of no other number."""

OLDEST_HOOK_API = 1
"""The oldest hook API whose plugins still work here."""

ORDERING = ("before", "after", "around", "within")
"""The fields of an algorithm's metadata that order it among others."""


class PlainModel(BaseModel):
    """A pydantic model whose constructor says in plain words what is wrong."""

    # Built at the first use: pydantic then asks all distributions for plugins of its own, which may fail or run code.
    model_config = ConfigDict(defer_build=True)

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise MetadataError(self._in_words(error)) from None

    # pydantic's mark of an `__init__` that it need not call: a model within another keeps its place in the message.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    def _in_words(cls, error: ValidationError) -> str:
        return in_one_line(error)


class StrictModel(PlainModel):
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
        raise ValueError(f"{name!r} can't be a name: it must not be empty or contain spaces, '@', ':', ',' or '/'")
    return name


def _is_reference(reference: str) -> str:
    return _is_name(reference.removeprefix("@")) and reference


def _one_of(known: Iterable[str], what: str) -> AfterValidator:
    def check(name: str) -> str:
        if name not in known:
            raise ValueError(f"{name!r} is not {what}{did_you_mean(name, known)}")
        return name

    return AfterValidator(check)


def _is_writable(name: str) -> str:
    field, dot, part = name.partition(".")
    if field not in WRITABLE:
        raise ValueError(f"{name!r} is not a State field that algorithms write{did_you_mean(field, WRITABLE)}")
    if dot and (field != "model" or not all(each.isidentifier() for each in part.split("."))):
        raise ValueError(f"{name!r} is not a part of the model: write model and a name, as in 'model.LayerNorm'")
    return name


def _is_served(number: int) -> int:
    if number > HOOK_API:
        raise ValueError(f"made for hook API {number}, but this engine-core has {HOOK_API}: update engine-core")
    if number < OLDEST_HOOK_API:
        raise ValueError(
            f"made for hook API {number}, but this engine-core has {HOOK_API} and accepts none before "
            f"{OLDEST_HOOK_API}: update the plugin, or install an older engine-core"
        )
    return number


_NAME, _REFERENCE = {"pattern": r"^[^ \t\n@:,/]+$"}, {"pattern": r"^@?[^ \t\n@:,/]+$"}  # for the published JSON schema

Name = Annotated[str, AfterValidator(_is_name), Field(json_schema_extra=_NAME)]
Tag = Annotated[str, AfterValidator(lambda tag: _is_name(tag.removeprefix("@"))), Field(json_schema_extra=_REFERENCE)]
Reference = Annotated[str, AfterValidator(_is_reference), Field(json_schema_extra=_REFERENCE)]
Writable = Annotated[
    str,
    AfterValidator(_is_writable),
    Field(json_schema_extra={"pattern": rf"^({'|'.join(WRITABLE)}|model(\.[^\W\d]\w*)+)$"}),
]
Need = Annotated[str, _one_of(NEEDS, "what a loop can offer"), Field(json_schema_extra={"enum": list(NEEDS)})]
HookApi = Annotated[
    StrictInt,
    AfterValidator(_is_served),
    Field(json_schema_extra={"minimum": OLDEST_HOOK_API, "maximum": HOOK_API}),
]
if TYPE_CHECKING:  # names are accepted; what is kept is always events
    Events = tuple[Event | str, ...]
else:
    Events = tuple[
        Annotated[Event, BeforeValidator(lambda given: Event(given) if isinstance(given, str) else given)], ...
    ]


class _Versioned(StrictModel):
    """Metadata with the number of a hook API."""

    @model_validator(mode="before")
    @classmethod
    def _look_at_the_number_first(cls, values: Any) -> Any:
        """A plugin for another API may declare what is unknown here, through no fault of its own."""
        number = values.get("hook_api", FIRST_HOOK_API) if isinstance(values, dict) else FIRST_HOOK_API
        if isinstance(number, int) and not OLDEST_HOOK_API <= number <= HOOK_API:
            return {"hook_api": number}
        return values


class AlgorithmMetadata(_Versioned):
    """What an algorithm declares: when it may run, what it changes, and its place among others.

    Args:
        name: the registered name; default: the class's name in snake case.
        description: one sentence for lists.
        events: the events at which `match` is asked; None: all of them.
        tags: what kind it is, such as `augmentation`; others refer to it as `@augmentation`.
        before: names or `@tags` of algorithms that run later, at every event that both list; absent ones are ignored.
        after: names or `@tags` of algorithms that run earlier, likewise.
        around: names or `@tags` of algorithms that work between its own two halves: they run later, but earlier at the
            AFTER or END half of a pair.
        within: names or `@tags` of algorithms between whose halves it works: the reverse of `around`.
        requires: names or `@tags`, each of which another algorithm in the engine must have.
        conflicts: names or `@tags` that no other algorithm in the engine may have.
        writes: the State fields that it changes; `()`: none; None: not declared. Of the model it may be a part, by a
            name that all its writers use: the class of the modules, as in `model.LayerNorm`, or `model.layout`.
        needs: what else the loop has to offer, names of `engine_core.needs.NEEDS`; other loops refuse it.
        hook_api: the number of the hook API it is written for, 1 if not given.

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
    around: tuple[Reference, ...] = ()
    within: tuple[Reference, ...] = ()
    requires: tuple[Reference, ...] = ()
    conflicts: tuple[Reference, ...] = ()
    writes: tuple[Writable, ...] | None = None
    needs: tuple[Need, ...] = ()
    hook_api: HookApi = FIRST_HOOK_API

    @property
    def written_fields(self) -> tuple[str, ...]:
        """The State fields that it changes, without their parts."""
        return tuple(dict.fromkeys(name.partition(".")[0] for name in self.writes or ()))

    def replace(self, **changes: Any) -> AlgorithmMetadata:
        """Return a copy with some fields changed, checked as the constructor checks them.

        An algorithm whose arguments decide gives itself metadata of its own, in its constructor; a change after that
        is not supported.

        Example:
            >>> AlgorithmMetadata(name="drop").replace(needs=("partial_forward",)).needs
            ('partial_forward',)
        """
        return type(self)(**{name: getattr(self, name) for name in type(self).model_fields} | changes)

    @model_validator(mode="after")
    def _not_against_itself(self) -> AlgorithmMetadata:
        for relation in (*ORDERING, "requires", "conflicts"):
            if self.name is not None and self.name in getattr(self, relation):
                raise ValueError(f"{relation}: {self.name!r} names itself")
        for one, other in (*itertools.combinations(ORDERING, 2), ("requires", "conflicts")):
            if both := sorted({*getattr(self, one)} & {*getattr(self, other)}):
                why = f": {other} is reversed at the second half of a pair, {one} is not"
                mixed = one in ORDERING[:2] and other in ORDERING[2:]
                raise ValueError(f"{both[0]!r} is in both {one} and {other}{why if mixed else ''}")
        return self


class PassMetadata(_Versioned):
    """What a pass declares: its stage and its place among the other passes.

    Args:
        name: default: the function's name.
        description: one sentence for lists.
        stage: `direction` runs before `placement`, `placement` before `check`.
        before: names of passes of the same stage that run later; absent ones are ignored.
        after: names of passes of the same stage that run earlier, likewise.
        events: the events at which it runs; None: all of them.
        pure: does its result depend on its arguments alone? Results of pure passes are remembered.
        changes_members: may it add or drop algorithms?
        hook_api: the number of the hook API it is written for, 1 if not given.

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
    hook_api: HookApi = FIRST_HOOK_API
