"""The loader's epochs, begun, saved and resumed, and a loader or a loaded state that fails."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch.utils import data as torch_data

from ...errors import CheckpointError, CheckpointWarning, DurationWarning, add_note
from ...loop import RunStatus
from ...messages import is_of_user, plural, warn
from ...randomness import GlobalGenerators, load_generator, state_of_generator
from ...ranks import Ranks
from ...state import State, length_of, train_length
from .dealt import Dealt, drawing_as_rank_0
from .loaders import (
    IndexOrder,
    ListOrder,
    as_if_started,
    entry_of,
    is_skippable,
    keeps_position,
    of_loader,
    order_of,
    own_generators,
    put_back,
    restart_generators,
    restart_workers,
    set_epoch,
    size_of,
)


class Feed:
    """Starts epochs of the train loader, and can resume in the middle of one or after one.

    It keeps the generators' states from the start of the epoch: restarting the epoch from them gives the same batches,
    and those already taken are skipped. A loader with `state_dict` keeps its position itself. With torch's own samplers
    the skipped batches are not read; other iterables read them again.
    """

    def __init__(self, state: State, device: torch.device, *, is_local: bool = False) -> None:
        self.taken = 0
        """How many batches of this epoch the loader gave or failed to give; the clock may have counted fewer."""
        self.is_exhausted = True
        """Has the loader ended the epoch? The loop sets both: an iterator that does would cost a frame a step."""
        self._before: dict[str, Any] | None = None
        """The position before the latest `look_ahead` that found a batch."""
        self._state = state
        self._device = device
        self._began: dict[str, Any] = {}
        self.dealt: Dealt | None = None
        """What deals the batches to this rank, if there are others."""
        self.is_local = is_local
        """Does the loader give the rows of this rank only?"""

    def start_epoch(self) -> Iterator[Any]:
        """Return an iterator over the train loader, and set the epoch of a distributed sampler."""
        loader = self._enter_epoch()
        # Before iter draws the order and the workers' seeds: from these a resumed run draws them again.
        self._began = {"global": GlobalGenerators.capture(self._device).to_state(), **of_loader(loader)}
        if self._dealing is None:
            return self._begin(loader)
        with drawing_as_rank_0(loader, self._state, self._device) as self._began:
            return self._begin(loader)

    def _begin(self, loader: Any) -> Iterator[Any]:
        try:
            if self._dealing is None and (not is_skippable(loader) or loader.num_workers):  # they take indices at once
                return self._begin_at(iter(loader), 0)
            # torch would draw the order at the first batch, after whatever callbacks draw before it.
            order = order_of(loader, self._dealing)
            return self._begin_at(order.skip(loader, 0), 0, order)
        except Exception:
            self._restart_epoch(loader, self._began)  # a run that is saved now starts the epoch again
            raise

    def position(self, *, in_epoch: bool) -> dict[str, Any]:
        """Return what `resume` needs, between two batches of an epoch or between two epochs."""
        if in_epoch and self._before is not None and self._before["taken"] == self.taken:
            return self._before
        loader: Any = self._state.train_dataloader
        position = {"in_epoch": in_epoch, **size_of(loader), **of_loader(loader)}
        position["gave"] = None if self._state.false_length is None else list(self._state.false_length)
        if keeps_position(loader):
            position["loader"] = loader.state_dict()
        if in_epoch:
            position |= {"began": self._began, "taken": self.taken}
        return position

    def look_ahead(self, batches: Any) -> Iterator[Any]:
        """Ask whether the epoch has another batch; return an iterator over what is left of it.

        So a loader is exhausted before its epoch ends, else its position would be that of an unfinished epoch without
        batches. What is saved before the batch is taken is saved as if nobody had asked.
        """
        if self.is_exhausted or (self._before is not None and self._before["taken"] == self.taken):
            return batches  # type: ignore[no-any-return]
        before = self.position(in_epoch=True)
        of_rank = batches if isinstance(batches, Dealt) else None
        ahead = list(itertools.islice(batches if of_rank is None else of_rank.batches, 1))
        self.is_exhausted = self._state.ranks.any(not ahead)
        if self.is_exhausted:
            return batches  # type: ignore[no-any-return]
        self._before = before
        if of_rank is None:
            return itertools.chain(ahead, batches)
        of_rank.batches = itertools.chain(ahead, of_rank.batches)  # it deals the batch when that is taken
        return of_rank

    def end_epoch(self) -> None:
        """Keep how many batches the epoch gave, if its loader says something else; the first one is warned of."""
        state = self._state
        known, said = state.false_length, length_of(state.train_dataloader)
        if said is None or not self.taken or self.taken in (train_length(state), state.dataloader_len):
            return
        if state.world_size > 1 and self.is_local:  # it ends where the shortest does, which another warning says
            return
        state.false_length = said, self.taken
        if known is None:
            warn(
                f"the train_dataloader says len {said}, and epoch {state.timestamp.epoch} gave "
                f"{plural(self.taken, 'batch', 'batches')}: no batch is lost, and from now on an epoch counts as "
                f"{self.taken}. But what was made for {said} keeps that length, such as intervals in 'dur', and "
                "schedulers with T_max='1dur' or steps: let the loader's __len__ return the right number, or have none",
                DurationWarning,
            )

    def resume(self, position: Mapping[str, Any]) -> Iterator[Any] | None:
        """Return an iterator over what is left of the epoch, None between epochs; the global generators change.

        Raises:
            CheckpointError: if the position is invalid or does not match this loader.
        """
        loader: Any = self._state.train_dataloader
        in_epoch = entry_of(position, "in_epoch", bool)
        own, persists = entry_of(position, "own", list), entry_of(position, "persists", bool)
        if (gave := position.get("gave")) is not None:  # of an older one
            if not isinstance(gave, list) or list(map(type, gave)) != [int, int]:
                raise CheckpointError(f"the checkpoint has no valid length of the train_dataloader: {gave!r:.80}")
            self._state.false_length = gave[0], gave[1]
        if (why := _difference(loader, position)) is not None:
            if in_epoch:
                raise CheckpointError(f"{why}: to resume in mid-epoch, the loader has to match the saved one")
            said = f"{why}: the next epoch will differ from the saved run's"
            warn(said, CheckpointWarning, of_rank=self.is_local)
        if keeps_position(loader):
            return self._resume_by_state(position, in_epoch=in_epoch)
        if in_epoch:
            return self._resume_epoch(position, own)
        # Starting them draws. Here only the loader's own generators are put back; the caller restores the global ones.
        restart_workers(loader, persists=persists, ranks=self._dealing)
        if len(own) == len(own_generators(loader)):
            put_back(loader, own)
        return None

    def _resume_by_state(self, position: Mapping[str, Any], *, in_epoch: bool) -> Iterator[Any] | None:
        loader: Any = self._enter_epoch() if in_epoch else self._state.train_dataloader
        own = entry_of(position, "own", list)
        is_ours, is_torchs = len(own) == len(own_generators(loader)), isinstance(loader, torch_data.DataLoader)
        if in_epoch:
            self.taken = entry_of(position, "taken", int)
            self._restart_epoch(loader, entry_of(position, "began", dict))
        if is_ours and not (in_epoch and is_torchs):
            put_back(loader, own)  # before its state, which takes precedence
        if "loader" not in position:
            return None
        try:
            loader.load_state_dict(position["loader"])
            with as_if_started(loader, persists=in_epoch and self._began["persists"] is True):
                iterator = self._begin_at(iter(loader), self.taken) if in_epoch else None
            if is_torchs:  # torchdata's too
                loader.state_dict()  # between epochs it loads its state only now, and draws for that
                if is_ours:
                    put_back(loader, own)  # collate_fn may draw from them too
        except Exception as error:
            if is_of_user(error):  # its dataset is read again
                raise
            raise CheckpointError(f"the train_dataloader can't load its state: {error!r}") from error
        return iterator

    def _restart_epoch(self, loader: Any, began: Any) -> None:
        """Reset all generators to the start of the epoch: samplers without a state draw their order from them."""
        restart_generators(loader, began, self._device)
        self._began = dict(began)

    def _resume_epoch(self, position: Mapping[str, Any], own: list[torch.Tensor]) -> Iterator[Any]:
        began, taken, length = entry_of(position, "began", dict), entry_of(position, "taken", int), position["batches"]
        loader: Any = self._enter_epoch()
        has_order = is_skippable(loader) or self._dealing is not None
        if taken < 0 or (length is not None and taken > length and (has_order or isinstance(loader, (list, tuple)))):
            raise CheckpointError(f"the checkpoint was saved after {taken} of {length} batches of the epoch")
        # Before the generators go back: starting workers draws, and the saved run did so in an earlier epoch.
        order = restart_workers(loader, persists=entry_of(began, "persists", bool), ranks=self._dealing)
        self._restart_epoch(loader, began)
        iterator = order.skip(loader, taken) if order is not None and has_order else _without_the_first(loader, taken)
        put_back(loader, own)  # last: skipping draws from them, and so may a collate_fn
        return self._begin_at(iterator, taken, order if has_order else None)

    def _begin_at(
        self, iterator: Iterator[Any], taken: int, order: IndexOrder | ListOrder | None = None
    ) -> Iterator[Any]:
        self.taken, self.is_exhausted, self._before = taken, False, None
        if self._state.world_size == 1:
            return iterator
        self.dealt = Dealt(iterator, self._state, None if order is None or self._dealing is None else order.sizes)
        return self.dealt

    @property
    def _dealing(self) -> Ranks | None:
        """The ranks among which the rows of each batch are dealt here, None if the loader does so or there is one."""
        return None if self._state.world_size == 1 or self.is_local else self._state.ranks

    def _enter_epoch(self) -> Any:
        enter_loader(self._state)
        loader: Any = self._state.train_dataloader
        set_epoch(loader, self._state.timestamp.epoch)
        return loader


def enter_loader(state: State) -> None:
    """Make the current train loader the loader in use."""
    state.dataloader, state.dataloader_label = state.train_dataloader, "train"
    state.dataloader_len = train_length(state)


def begin_pass(loader: Any, device: torch.device) -> dict[str, Any]:
    """Return what `restart_pass` needs of a loader whose pass begins, with the global generators as one object."""
    began = {"global": GlobalGenerators.capture(device), **of_loader(loader)}
    if keeps_position(loader) and not isinstance(loader, torch_data.DataLoader):  # torchdata's begins where it began
        began["loader"] = copy.deepcopy(loader.state_dict())
    return began


def restart_pass(loader: Any, began: Any, device: torch.device) -> None:
    """Let an evaluation's loader begin a pass as it began before, in the state that `began` has."""
    if "loader" in began:
        loader.load_state_dict(began["loader"])
    elif not keeps_position(loader):
        restart_workers(loader, persists=entry_of(began, "persists", bool))  # before: it draws
    restart_generators(loader, began, device)


def _difference(loader: Any, position: Mapping[str, Any]) -> str | None:
    """Return how the loader differs from the saved one, as far as can be seen."""
    if keeps_position(loader) != ("loader" in position):
        one, other = ("a", "none") if "loader" in position else ("no", "one")
        return f"the saved train_dataloader had {one} state_dict, and this one has {other}"
    if len(entry_of(position, "own", list)) != len(own_generators(loader)):
        return "the saved train_dataloader had a different number of generators of its own"
    saved = {key: entry_of(position, key, int, type(None)) for key in ("batch_size", "batches")}
    if saved != (now := size_of(loader)):
        then, this = (f"batch_size {size['batch_size']} and {size['batches']} batches" for size in (saved, now))
        return f"the saved train_dataloader had {then}, and this one has {this}"
    return None


def _without_the_first(loader: Any, batches: int) -> Iterator[Any]:
    """Return an iterator over a loader, after reading and dropping its first batches."""
    if isinstance(loader, (list, tuple)):
        return iter(loader[batches:])
    iterator: Iterator[Any] = iter(loader)
    for _ in range(batches):
        try:
            next(iterator)  # as the loop does: a second iter() may shuffle again, or be refused
        except StopIteration:
            raise CheckpointError(
                f"the train_dataloader has fewer than the {batches} batches of the saved run"
            ) from None
    return iterator


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
