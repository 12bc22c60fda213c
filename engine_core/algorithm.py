"""The contract of an algorithm: something that changes training. Knows no engine."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import re
import reprlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from .event import Event
from .metadata import AlgorithmMetadata
from .observed import ObservedList

if TYPE_CHECKING:
    from typing_extensions import Self

    from .logger import Logger
    from .state import State

__all__ = ["Algorithm", "algorithm_metadata", "is_averaging", "kept_arguments", "snake_case", "unique_names"]


class _SignatureOfInit:
    """The signature of a class of algorithms is that of its `__init__`; `inspect` would show `Algorithm.__new__`'s."""

    def __get__(self, instance: object, owner: type) -> inspect.Signature | None:
        if instance is not None:
            return None
        init: Any = owner.__init__  # type: ignore[misc]
        if init is object.__init__:
            return inspect.Signature()
        signature = inspect.signature(init)
        return signature.replace(parameters=list(signature.parameters.values())[1:])


class Algorithm(ABC):
    """A method that changes how a model is trained.

    The engine asks `match` at each event that `metadata` lists, and calls `apply` where the answer is true.

    Example:
        >>> class Halve(Algorithm):
        ...     metadata = AlgorithmMetadata(events=("after_loss",), writes=("loss",))
        ...
        ...     def match(self, event, state):
        ...         return True
        ...
        ...     def apply(self, event, state, logger):
        ...         state.loss = state.loss / 2
    """

    metadata: ClassVar[AlgorithmMetadata] = AlgorithmMetadata.model_construct()  # builds no pydantic model

    # What the constructor was given is kept in a slot: whatever compares algorithms reads `vars(algorithm)`.
    __slots__ = ("__dict__", "__weakref__", "_finished", "_given")
    _finished: ObservedList[bool]  # that of its engine, which observes it
    _given: tuple[tuple[Any, ...], dict[str, Any]]
    __signature__ = _SignatureOfInit()

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Make an instance, and keep the arguments for `repr`."""
        if cls.__init__ is object.__init__ and (args or kwargs):
            raise TypeError(f"{cls.__name__}() takes no arguments")
        algorithm = super().__new__(cls)
        object.__setattr__(algorithm, "_given", (args, kwargs))  # past a frozen dataclass, and past a module
        return algorithm

    def __repr__(self) -> str:
        """Return the constructor's call, with the arguments that differ from their defaults."""
        signature = inspect.signature(type(self))
        args, kwargs = getattr(self, "_given", ((), {}))  # missing if a `__new__` did not call this one
        values = {**signature.bind_partial(*args, **kwargs).arguments, **kept_arguments(self)}
        shown = [_shown(p, values[name]) for name, p in signature.parameters.items() if name in values]
        return f"{type(self).__name__}({', '.join(filter(None, shown))})"

    @abstractmethod
    def match(self, event: Event, state: State) -> bool:
        """Return whether `apply` should run now, True or False; be cheap and change nothing."""

    @abstractmethod
    def apply(self, event: Event, state: State, logger: Logger) -> int | None:
        """Change `state`; a returned integer becomes the trace's exit code."""

    def finish(self) -> None:
        """Say that nothing is left to do in this run: from the next event on `match` is not asked any more.

        What it has begun at the first half of a pair it is asked to undo first. A state that is loaded ends this, so a
        resumed algorithm says it again, in `load_state_dict` or in `apply`; in another engine it begins anew.
        """
        if not getattr(self, "_finished", True):  # no engine has it
            self._finished.append(True)

    def validate(self, state: State) -> None:
        """Look at the first batch and raise if this run can't work; change nothing, run no forward pass.

        Called once per engine, at the first AFTER_DATALOADER with a batch after the algorithm joined.
        """

    def may_rest(self, state: State) -> bool:
        """Is it as it should be that `match` was never true, as with an interval longer than this training?

        Asked at the end of a training in which it never was; False warns.
        """
        return False

    @property
    def backwards_create_graph(self) -> bool:
        """Does the backward pass have to build a graph because this algorithm differentiates through it?"""
        return False

    @property
    def find_unused_parameters(self) -> bool:
        """May parameters go without a gradient, so that DistributedDataParallel has to look for them?"""
        return False

    @staticmethod
    def required_on_load() -> bool:
        """Does loading a checkpoint of a run with this algorithm require it, as with surgery?"""
        return False

    def prepare_to_load(self, state: State, names: Collection[str]) -> None:
        """Give the model the modules that weights of these names belong to, which are loaded next.

        For an algorithm that changes them after INIT, which needs `late_surgery`. Called after INIT, and again to go
        back to weights that were saved before such a change.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs: tensors and JSON values only."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""


def algorithm_metadata(algorithm: object) -> AlgorithmMetadata:
    """Return what an algorithm declares; one without metadata declares nothing."""
    metadata = getattr(algorithm, "metadata", None)
    return metadata if isinstance(metadata, AlgorithmMetadata) else AlgorithmMetadata()


def is_averaging(algorithm: object) -> bool:
    """Does an algorithm put averaged weights into the model for evaluations?

    It lists EVAL_START, and its `averaged_state_dict()` returns the weights by their names in the model's state_dict,
    or None before there are any.
    """
    events = algorithm_metadata(algorithm).events or ()
    return Event.EVAL_START in events and callable(getattr(algorithm, "averaged_state_dict", None))


def kept_arguments(algorithm: object) -> dict[str, Any]:
    """Return the constructor's arguments that an object keeps, by name, `_name` or in a frozen dataclass."""
    try:
        arguments = inspect.signature(type(algorithm)).parameters
    except ValueError:  # a class written in C, such as SimpleNamespace
        return {}
    attributes = getattr(algorithm, "__dict__", {})
    found: dict[str, Any] = {}  # what comes later wins: an attribute of the argument's own name is the surest
    for value in attributes.values():
        if dataclasses.is_dataclass(value) and getattr(type(value), "__dataclass_params__").frozen:  # noqa: B009
            found |= {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    found |= {name.removeprefix("_"): value for name, value in attributes.items() if name.startswith("_")}
    found |= attributes
    return {name: found[name] for name in arguments if name in found}


class _Brief(reprlib.Repr):
    """Shows an argument in a few characters of one line, without an address."""

    def repr_instance(self, x: Any, level: int) -> str:
        """Show functions and classes by name, and by its class whatever has no short text."""
        torch: Any = sys.modules.get("torch")
        if torch is not None and isinstance(x, (torch.Tensor, torch.nn.Module)):
            return f"<{type(x).__name__}>"
        if isinstance(name := getattr(x, "__name__", None), str):
            return name
        try:
            text = repr(x)
        except Exception:  # noqa: BLE001  the author's code, which says nothing about the algorithm
            text = ""
        is_brief = text and len(text) <= self.maxother and "\n" not in text and " at 0x" not in text
        return text if is_brief else f"<{type(x).__name__}>"


_brief = _Brief()
_brief.maxstring = _brief.maxother = 100
_STARS: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


def _shown(parameter: inspect.Parameter, value: Any) -> str:
    """Return an argument as it is written in a call, or nothing for a default."""
    text, default = _brief.repr(value), parameter.default
    if (stars := _STARS.get(parameter.kind)) is not None:
        return f"{stars}{text}"
    if default is not parameter.empty:
        is_same_number = isinstance(value, (int, float)) and isinstance(default, (int, float)) and value == default
        if is_same_number or text == _brief.repr(default):
            return ""
    return f"{parameter.name}={text}"


def snake_case(name: str) -> str:
    """Return a class's name as a registered name: `FreezeLayers` is `freeze_layers`, `Noise2D` is `noise2_d`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def unique_names(objects: Iterable[object], taken: Iterable[str] = ()) -> list[str]:
    """Return the class names of objects, made unique in order: the second `Freeze` is `Freeze-2`."""
    used, names = set(taken), list[str]()
    for base in (type(item).__name__ for item in objects):
        numbered = (f"{base}-{number}" for number in itertools.count(2))
        name = base if base not in used else next(other for other in numbered if other not in used)
        used.add(name)
        names.append(name)
    return names
