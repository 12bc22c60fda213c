"""The contract of an algorithm: something that changes training. Knows no engine."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from .event import Event
from .metadata import AlgorithmMetadata

if TYPE_CHECKING:
    from .logger import Logger
    from .state import State

__all__ = ["Algorithm", "algorithm_metadata", "snake_case", "unique_names"]


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

    @abstractmethod
    def match(self, event: Event, state: State) -> bool:
        """Return whether `apply` should run now, True or False; be cheap and change nothing."""

    @abstractmethod
    def apply(self, event: Event, state: State, logger: Logger) -> int | None:
        """Change `state`; a returned integer becomes the trace's exit code."""

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

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs: tensors and JSON values only."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""


def algorithm_metadata(algorithm: object) -> AlgorithmMetadata:
    """Return what an algorithm declares; one without metadata declares nothing."""
    metadata = getattr(algorithm, "metadata", None)
    return metadata if isinstance(metadata, AlgorithmMetadata) else AlgorithmMetadata()


def snake_case(name: str) -> str:
    """Return a class's name as a registered name: `FreezeLayers` is `freeze_layers`, `Noise2D` is `noise2_d`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def unique_names(objects: Iterable[object], taken: Iterable[str] = ()) -> list[str]:
    """Return the class names of objects, made unique in order: the second `Freeze` is `Freeze-2`."""
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
