"""What the algorithms of this package share: each changes a model at INIT, once."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from torch import nn

from engine_core import Algorithm, Event, Logger, State
from engine_core.errors import ArgumentError

from .replacement import warn_of_nothing

__all__ = ["Operation"]


class Operation(Algorithm):
    """Change the model at INIT, log in how many places, and warn if there are none."""

    made: ClassVar[tuple[type[nn.Module], ...]] = ()
    """Classes of its own layers: a model that has some was changed before, so there is no warning."""

    @abstractmethod
    def operate(self, model: nn.Module, state: State) -> list[str]:
        """Change the model, and return the qualified names of the places."""

    @abstractmethod
    def looked_for(self) -> str:
        """Return what the model has none of, if nothing was found."""

    @staticmethod
    def required_on_load() -> bool:
        """A checkpoint holds the weights of the changed model, which only fit its layers."""
        return True

    def match(self, event: Event, state: State) -> bool:
        """INIT."""
        return event is Event.INIT

    def apply(self, event: Event, state: State, logger: Logger | None = None) -> None:
        """Change the model of the run."""
        name = str(self.metadata.name)
        if state.model is None:
            raise ArgumentError(f"{name} has no model to change: give one, State(model=...), before INIT")
        places = self.operate(state.model, state)
        if not places and not any(isinstance(module, self.made) for module in state.model.modules()):
            warn_of_nothing(name, self.looked_for())
        if logger is not None and logger.destinations:
            logger.log_metrics({f"{name}/replaced": len(places)})
