"""The contracts of a callback, which watches training, and of a logger destination. Knows no engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from .logger import Logger, Traces
    from .state import State

__all__ = [
    "Callback",
    "LoggerDestination",
    "continues_itself",
    "is_used_on",
    "method_of",
    "needs_of",
    "saver_folders",
]


class Callback:
    """Watches a run: one method `(state, logger)` for each event it cares about, named after the event.

    Attributes:
        every_rank: is it used on every rank of a run on several processes? False: on rank 0 only.

    Example:
        >>> class CountBatches(Callback):
        ...     batches = 0
        ...
        ...     def batch_end(self, state, logger):
        ...         self.batches += 1
    """

    every_rank: ClassVar[bool] = True
    needs: tuple[str, ...] = ()
    """What the loop has to offer, names of `engine_core.needs.NEEDS`; where arguments decide, an instance's own."""

    def close(self, state: State, logger: Logger) -> None:
        """Release what the run needed; called once, when the engine closes."""

    def post_close(self) -> None:
        """Do what has to wait until every callback is closed; called if `close` succeeded."""

    def start_over(self) -> None:
        """Discard what an earlier attempt left behind: the run was to be resumed, but nothing of it was saved."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs: tensors and JSON values only."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""


class LoggerDestination(Callback):
    """A callback that also receives what is logged; it runs after the other callbacks.

    On several processes it is used on rank 0 only, unless a class sets `every_rank`.
    """

    every_rank: ClassVar[bool] = False

    def log_metrics(self, metrics: Mapping[str, Any], step: int) -> None:
        """Receive values by name; `step` is the number of batches that were complete when they were logged."""

    def log_hyperparameters(self, hyperparameters: Mapping[str, Any]) -> None:
        """Receive settings of the run."""

    def log_traces(self, traces: Traces) -> None:
        """Receive what the algorithms of an event did."""

    def log_file(self, name: str, content: bytes | str, step: int) -> None:
        """Receive a picture, JSON or text under a name that ends in .png, .svg, .json or .txt."""


def is_used_on(rank: int, listener: object) -> bool:
    """Is a callback or a logger destination, or a class of them, used on this rank?

    One that does not say so is used on every rank, and a destination on rank 0 only.
    """
    return rank == 0 or getattr(listener, "every_rank", not hasattr(listener, "log_metrics")) is not False


def saver_folders(callbacks: Iterable[Any]) -> list[Path]:
    """Return the folders of the callbacks that save checkpoints, which have a `checkpoint_folder`."""
    folders = (getattr(callback, "checkpoint_folder", None) for callback in callbacks)
    return [Path(folder) for folder in folders if folder is not None]


def continues_itself(state: State) -> bool:
    """Does the run continue what it began, or does it start from another run's checkpoint?

    That is so if its savers have another folder than the checkpoint's. A run without savers is taken for the same.
    """
    own = [folder.resolve() for folder in saver_folders(state.callbacks)]
    return state.loaded_from is None or not own or state.loaded_from.parent.resolve() in own


def method_of(listener: object, event: str) -> Any:
    """Return the listener's method for an event, or None, without evaluating the object's properties."""
    own = getattr(listener, "__dict__", {})
    if event in own:
        method = own[event]
    elif callable(getattr(type(listener), event, None)):
        method = getattr(listener, event)
    else:
        return None
    return method if callable(method) else None


def needs_of(listener: object) -> Any:
    """Return what a listener, or a class of listeners, declares that it needs, without evaluating its properties."""
    if isinstance(listener, type):
        return getattr(listener, "needs", ())
    return getattr(listener, "__dict__", {}).get("needs", getattr(type(listener), "needs", ()))
