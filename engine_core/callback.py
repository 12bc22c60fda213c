"""The contract of a callback: something that watches training. Knows no engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .logger import Logger
    from .state import State

__all__ = ["Callback"]


class Callback:
    """Watches a run: one method `(state, logger)` for each event it cares about, named after the event.

    Example:
        >>> class CountBatches(Callback):
        ...     batches = 0
        ...
        ...     def batch_end(self, state, logger):
        ...         self.batches += 1
    """

    def close(self, state: State, logger: Logger) -> None:
        """Release what the run needed; called once, when the engine closes."""

    def post_close(self) -> None:
        """Do what has to wait until every callback is closed; called if `close` succeeded."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs: tensors and JSON values only."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""
