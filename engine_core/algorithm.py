"""The contract of an algorithm: something that changes training. Knows no engine."""

from __future__ import annotations

import functools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from .event import Event
from .metadata import AlgorithmMetadata

if TYPE_CHECKING:
    from .logger import Logger
    from .state import State

__all__ = ["Algorithm", "Members", "algorithm_metadata", "snake_case", "unique_names"]

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


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

    metadata: ClassVar[AlgorithmMetadata] = AlgorithmMetadata.model_construct()  # which builds no model

    @abstractmethod
    def match(self, event: Event, state: State) -> bool:
        """Say whether `apply` shall run now; look only, cheaply, and change nothing."""

    @abstractmethod
    def apply(self, event: Event, state: State, logger: Logger) -> int | None:
        """Change `state`; an integer returned becomes the trace's exit code."""

    def validate(self, state: State) -> None:
        """Look at the first batch and raise if this run can't work; change nothing, run no forward pass.

        Called once per engine, on the first AFTER_DATALOADER with a batch after the algorithm joined.
        """

    @property
    def backwards_create_graph(self) -> bool:
        """Does the backward pass have to build a graph, because this algorithm differentiates it again?"""
        return False

    @property
    def find_unused_parameters(self) -> bool:
        """May parameters go without a gradient, so that DistributedDataParallel has to look for them?"""
        return False

    @staticmethod
    def required_on_load() -> bool:
        """Does a checkpoint of a run with this algorithm need it on load, as surgery does?"""
        return False

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs: tensors and JSON values only."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""


def algorithm_metadata(algorithm: object) -> AlgorithmMetadata:
    """Return what an algorithm declares; one without metadata declares nothing."""
    metadata = getattr(algorithm, "metadata", None)
    return metadata if isinstance(metadata, AlgorithmMetadata) else AlgorithmMetadata()


def snake_case(name: str) -> str:
    """Return a class's name as a registered name.

    Example:
        >>> snake_case("FreezeLayers"), snake_case("MLP"), snake_case("Noise2D")
        ('freeze_layers', 'mlp', 'noise2_d')
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def unique_names(objects: Iterable[object], taken: Iterable[str] = ()) -> list[str]:
    """Return the class names of objects, made unique in order: the second `Freeze` is `Freeze-2`.

    Example:
        >>> unique_names([1, "a", 2])
        ['int', 'str', 'int-2']
    """
    used = set(taken)
    names = []
    for item in objects:
        name = base = type(item).__name__
        number = 1
        while name in used:
            number += 1
            name = f"{base}-{number}"
        used.add(name)
        names.append(name)
    return names


def _announcing(method: F) -> F:
    """Let a method of `list` tell the watchers."""

    @functools.wraps(method)
    def call(self: Members[Any], *args: Any, **options: Any) -> Any:
        self._changed()
        return method(self, *args, **options)

    return cast("F", call)


class Members(list[T]):
    """A list that tells who watches it of each change, so that an engine sees when it is edited in place."""

    __slots__ = ("_watchers",)

    def __init__(self, items: Iterable[T] = ()) -> None:
        super().__init__(items)
        self._watchers: list[Callable[[], None]] = []

    @classmethod
    def of(cls, given: Any) -> Members[Any]:
        """Return one object, several, or None for nothing as Members; what is Members already is returned itself."""
        if isinstance(given, cls):
            return given
        return cls(given if isinstance(given, (list, tuple)) else [] if given is None else [given])

    def watch(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` at each change from now on."""
        if on_change not in self._watchers:
            self._watchers.append(on_change)

    def unwatch(self, on_change: Callable[[], None]) -> None:
        """Stop calling `on_change`."""
        if on_change in self._watchers:
            self._watchers.remove(on_change)

    def hand_over(self, successor: Members[Any]) -> None:
        """Let those who watch this list know that `successor` takes its place."""
        if successor is not self:
            self._changed()

    def _changed(self) -> None:
        for on_change in self._watchers:
            on_change()

    append = _announcing(list.append)
    extend = _announcing(list.extend)
    insert = _announcing(list.insert)
    remove = _announcing(list.remove)
    pop = _announcing(list.pop)
    clear = _announcing(list.clear)
    reverse = _announcing(list.reverse)
    sort = _announcing(list.sort)
    __setitem__ = _announcing(list.__setitem__)
    __delitem__ = _announcing(list.__delitem__)
    __iadd__ = _announcing(list.__iadd__)
    __imul__ = _announcing(list.__imul__)

    def __reduce__(self) -> tuple[type[Members[T]], tuple[list[T]]]:
        return type(self), (list(self),)
