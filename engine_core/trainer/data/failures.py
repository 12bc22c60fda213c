"""Handle failures of a fit that the loop did not cause: of the loader, or of a loaded state. Fires nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

import torch

from ...embed import RunStatus
from ...errors import CheckpointError, add_note
from ...randomness import GlobalGenerators, load_generator, state_of_generator
from ...state import State
from .feed import Feed
from .loaders import keeps_position, own_generators


class Loading(Protocol):
    """What a run has to provide: its state, its loader and its status."""

    state: State
    feed: Feed
    batches: Iterator[Any] | None
    status: RunStatus


class BeforeBatch:
    """The generators as they were before the loader was asked for a batch, so that a batch that fails can be retried.

    All of them are copied at each batch only if the loader draws, which one of its first batches tells: that takes 0.1
    ms, and torch's alone a microsecond.
    """

    def __init__(self, session: Loading, device: torch.device) -> None:
        loader: Any = session.state.train_dataloader
        self.is_needed = session.state.world_size == 1 and type(loader) not in (list, tuple)
        self._device, self._own = device, own_generators(loader)
        self._draws = True
        self._untold = 2
        """How many batches until it is told whether the loader draws; in the first one, a sampler may draw an order."""
        self._kept: Any = None

    def look(self) -> None:
        """Copy what the next batch may draw from."""
        self._kept = self._copied() if self._draws else torch.get_rng_state()

    def look_again(self) -> None:
        """The batch is there: if it was one of the first, find out whether the loader drew for it."""
        if self._untold:
            self._untold -= 1
            self._draws = bool(self._untold) or _plain(self._kept) != _plain(self._copied())

    @contextmanager
    def back(self) -> Iterator[None]:
        """Put them back for the block."""
        if self._kept is None:
            yield
            return
        now = self._copied()
        try:
            self._put_back(self._kept)
            yield
        finally:
            self._put_back(now)

    def _copied(self) -> Any:
        return GlobalGenerators.capture(self._device), [state_of_generator(generator) for generator in self._own]

    def _put_back(self, kept: Any) -> None:
        if isinstance(kept, torch.Tensor):
            torch.set_rng_state(kept)
            return
        kept[0].restore()
        for generator, state in zip(self._own, kept[1], strict=True):
            load_generator(generator, state)


def lose_no_batch(
    session: Loading, error: BaseException, checkpoint: Callable[[str], None], before: BeforeBatch | None = None
) -> None:
    """Let savers save what was trained before the loader raised `error`; a resumed run retries the same batch."""
    state, is_failure = session.state, isinstance(error, Exception)  # else a second signal, say, which acts at once
    try:
        if is_failure:
            at = state.timestamp
            where = "; a resumed run continues where its state_dict says" * keeps_position(state.train_dataloader)
            add_note(error, f"the train_dataloader failed at batch {at.batch_in_epoch} of epoch {at.epoch}{where}")
            if at.batch and state.world_size == 1:  # other ranks are elsewhere
                with nullcontext() if before is None else before.back():
                    _save_before(session, error, checkpoint)
    finally:
        # Only now: what was saved retries this batch, while in this process a DataLoader continues after it.
        session.feed.taken += is_failure
        # A dead generator looks exhausted to the next fit, and so may an iterator that Ctrl-C cut.
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
        session.state.loop.pause_requested = True
        try:
            checkpoint("batch_checkpoint")
        except Exception as second:  # noqa: BLE001  nothing may replace the first error
            if not is_last and "DataLoader worker" in str(second):
                continue  # torch raises this once per dead worker, wherever the main thread is
            add_note(error, f"the run could not be saved: {second}")
        finally:
            session.state.loop.pause_requested = False
        return


def _plain(copied: Any) -> Any:
    """Return copies of generators as what can be compared."""
    if isinstance(copied, GlobalGenerators):
        return _plain([copied.of_cpu, copied.of_device, copied.of_python, copied.of_numpy])
    if isinstance(copied, dict):
        return {key: _plain(value) for key, value in copied.items()}
    if isinstance(copied, (list, tuple)):
        return [_plain(value) for value in copied]
    return copied.tolist() if hasattr(copied, "tolist") else copied
