"""Handle failures of a fit that the loop did not cause: of the loader, or of a loaded state. Fires nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any, Protocol

from ...embed import RunStatus
from ...errors import CheckpointError, add_note
from ...state import State
from .feed import Feed
from .loaders import keeps_position


class Loading(Protocol):
    """What a run has to provide: its state, its loader and its status."""

    state: State
    feed: Feed
    batches: Iterator[Any] | None
    status: RunStatus


def lose_no_batch(session: Loading, error: BaseException, checkpoint: Callable[[str], None]) -> None:
    """Let savers save what was trained before the loader raised `error`; a resumed run retries the same batch."""
    state, is_failure = session.state, isinstance(error, Exception)
    try:
        # a signal to the whole group ends worker processes too
        if is_failure or state.interrupted_by is not None:
            at = state.timestamp
            where = "; a resumed run continues where its state_dict says" * keeps_position(state.train_dataloader)
            add_note(error, f"the train_dataloader failed at batch {at.batch_in_epoch} of epoch {at.epoch}{where}")
            if at.batch and state.world_size == 1:  # other ranks are elsewhere
                _save_before(session, error, checkpoint)
    finally:
        # Only now: what was saved retries this batch, while in this process a DataLoader continues after it.
        session.feed.taken += is_failure
        # A dead generator looks exhausted to the next fit, and so may an iterator that a signal cut.
        if isinstance(session.batches, Generator) or not session.feed.taken:
            session.batches = None


def blame_what_was_loaded(session: Loading, error: Exception, batch: int) -> None:
    """Raise a CheckpointError if the step at this batch count was the first one with a loaded state."""
    if session.status.is_first_step_after_resuming(batch):
        raise CheckpointError(
            f"optimizers or schedulers can't use the state loaded from {str(session.state.loaded_from)!r}: {error!r}; "
            "load another checkpoint, or only its weights (load_weights_only)"
        ) from error


def _save_before(session: Loading, error: BaseException, checkpoint: Callable[[str], None]) -> None:
    """Save as for a pause, before `error` propagates; if saving fails, add a note to it."""
    for is_last in (False, True):
        session.state.pause_requested = True
        try:
            checkpoint("batch_checkpoint")
        except Exception as second:  # noqa: BLE001  nothing may replace the first error
            if not is_last and "DataLoader worker" in str(second):
                continue  # torch raises this once per dead worker, wherever the main thread is
            add_note(error, f"the run could not be saved: {second}")
        finally:
            session.state.pause_requested = False
        return
