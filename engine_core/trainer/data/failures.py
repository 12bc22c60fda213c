"""What fails in a fit through no fault of the loop: a loader, a state that was loaded. Fires nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any, Protocol

from ...errors import CheckpointError, add_note
from ...state import State
from ..status import RunStatus
from .feed import Feed
from .loaders import keeps_position

__all__ = ["blame_what_was_loaded", "lose_no_batch"]


class Loading(Protocol):
    """What is asked of a run: its state, its loader, and its status."""

    state: State
    feed: Feed
    batches: Iterator[Any] | None
    status: RunStatus


def lose_no_batch(session: Loading, error: BaseException, checkpoint: Callable[[str], None]) -> None:
    """Let savers save what was trained before the loader raised `error`; a resumed run asks for the same batch again.

    Args:
        checkpoint: fires the event at which savers save.
    """
    state, is_failure = session.state, isinstance(error, Exception)
    try:
        # a signal to the whole group ends worker processes too
        if is_failure or state.interrupted_by is not None:
            at = state.timestamp
            knows_better = "; a resumed run goes on where its state_dict says" * keeps_position(state.train_dataloader)
            add_note(
                error, f"the train_dataloader failed at batch {at.batch_in_epoch} of epoch {at.epoch}{knows_better}"
            )
            if at.batch:
                _save_before(session, error, checkpoint)
    finally:
        session.feed.taken += is_failure  # a DataLoader goes on behind it
        if isinstance(session.batches, Generator):  # it is dead, and would pass for exhausted in the next fit
            session.batches = None


def blame_what_was_loaded(session: Loading, error: Exception, batch: int) -> None:
    """Raise a CheckpointError if the step that began at this batch count was the first with a state that was loaded."""
    if session.status.is_first_step_after_resuming(batch):
        raise CheckpointError(
            f"optimizers or schedulers can't go on with the state from {str(session.state.loaded_from)!r}: {error!r}; "
            "load another checkpoint, or its weights alone (load_weights_only)"
        ) from error


def _save_before(session: Loading, error: BaseException, checkpoint: Callable[[str], None]) -> None:
    """Save as for a pause, before `error` goes on; what goes wrong with that is a note on it."""
    for is_last in (False, True):
        try:
            with session.status.as_if_paused():
                checkpoint("batch_checkpoint")
        except Exception as second:  # noqa: BLE001  nothing may take the place of the error that came first
            if not is_last and "DataLoader worker" in str(second):
                continue  # torch says so once for each that has died, wherever the main thread is then
            add_note(error, f"the run could not be saved then: {second}")
        return
