"""The loader's epochs, begun, saved and resumed, and this rank's rows of each batch, in evaluations too."""

from __future__ import annotations

import copy
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch.utils import data as torch_data

from ..errors import ArgumentError, CheckpointError, CheckpointWarning, DurationWarning, EngineError
from ..messages import is_of_user, plural, warn
from ..randomness import GlobalGenerators, load_generator, preserve_generators, state_of_generator
from ..ranks import Ranks, share
from ..state import State, length_of, train_length
from .loaders import (
    IndexOrder,
    ListOrder,
    as_if_started,
    checked_order,
    entry_of,
    extent_of,
    in_batches,
    is_skippable,
    keeps_position,
    of_loader,
    order_of,
    own_generators,
    put_back,
    restart_generators,
    restart_workers,
    saved_order,
    set_epoch,
    size_of,
    without_index,
)

Ends = Literal["with the first", "with the last", "alone"]


class Dealt:
    """An iterator over this rank's rows of each batch; State says whether they are a placeholder.

    Args:
        sizes: rows of the global batches of which the loader reads this rank's part; None: each rank's loader gives
            rows of its own.
        ends: with such loaders, where all ranks end: with the first rank, or with the last one, until which the others
            get placeholders. Each rank `alone` needs no message, and no rank knows the rows of the others.
    """

    def __init__(
        self, batches: Iterator[Any], state: State, sizes: deque[int] | None, ends: Ends = "with the first"
    ) -> None:
        self.batches, self.rows = batches, 0
        self._state, self._sizes, self._ends = state, sizes, ends
        self._last: Any = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._sizes is None:
            return self._of_own_rows()
        batch = next(self.batches)
        self.rows = self._sizes.popleft()
        start, stop = share(self.rows, self._state.rank, self._state.world_size)
        self._state.is_placeholder = start == stop
        return batch

    def _of_own_rows(self) -> Any:
        state, own = self._state, -1
        for batch in self.batches:
            own = state.batches.rows(batch)
            break
        else:
            batch = self._last
        found = [own] if self._ends == "alone" else [int(rows) for (rows,) in state.ranks.table([own])]
        ended = [rank for rank, rows in enumerate(found) if rows < 0]
        if len(ended) == len(found):
            raise StopIteration
        if ended and self._ends == "with the first":
            self._warn_of_end(ended)
            raise StopIteration
        if ended and self._last is None:
            label = state.dataloader_label
            raise EngineError(f"the loader {label!r} gave no batches on rank {ended[0]}, and some on others")
        self.rows, state.is_placeholder = sum(max(rows, 0) for rows in found), own < 0
        if own >= 0 and self._ends == "with the last":
            self._last = state.batches.part(batch, slice(0, 1))
        return batch

    def _warn_of_end(self, ended: Sequence[int]) -> None:
        state = self._state
        if state.rank == 0:
            warn(
                f"the train_dataloader ended after batch {state.timestamp.batch_in_epoch} of epoch "
                f"{state.timestamp.epoch} on rank {', '.join(map(str, ended))}, and not on the others: the epoch ends "
                "there for all",
                UserWarning,
            )


def deal(
    loader: Iterable[Any], state: State, device: torch.device, *, is_local: bool, in_step: bool = True
) -> Iterator[tuple[Any, int]]:
    """Yield this rank's part of each batch of an evaluation or a prediction, with the rows of the whole one.

    Args:
        is_local: does the loader give this rank's rows only?
        in_step: do all ranks take as many batches? Otherwise they need each other only to begin.
    """
    if state.world_size == 1:
        for batch in loader:
            try:
                rows = state.batches.rows(batch)
            except ArgumentError:
                rows = 0
            yield batch, rows
        return
    if is_local:
        batches = Dealt(iter(loader), state, None, "with the last" if in_step else "alone")
    else:
        check_dealable(loader, str(state.dataloader_label), state.ranks)
        with drawing_as_rank_0(loader, state, device):
            order: Any = order_of(loader, state.ranks)
            batches = Dealt(order.skip(loader, 0), state, order.sizes)
    for batch in batches:
        yield batch, batches.rows


@contextmanager
def drawing_as_rank_0(loader: Any, state: State, device: torch.device) -> Iterator[dict[str, Any]]:
    """Let the block draw what rank 0 draws; each rank keeps its own global generators for all else."""
    began = state.ranks.first({"global": GlobalGenerators.capture(device).to_state(), **of_loader(loader)})
    with preserve_generators(device) if state.rank else nullcontext():
        restart_generators(loader, began, device)
        yield began


def check_dealable(loader: Any, label: str, ranks: Ranks) -> None:
    """Raise on all ranks if the rows of a loader can't be dealt by index, or if the ranks have different rows."""
    if (kind := without_index(loader)) is not None:
        raise ArgumentError(
            f"the rows of the loader {label!r}, {kind}, can't be dealt to {ranks.size} ranks: give torch's DataLoader, "
            "which is read by index, or loaders of each rank's own rows and Trainer(parallel=DDP(data='local'))"
        )
    batches, rows, splits, rows_0 = zip(*ranks.table(extent_of(loader)), strict=True)
    for found, what in ((batches, "batches"), (rows, "rows of the dataset")):
        if len({*found}) > 1:
            each = ", ".join(f"rank {rank}: {'?' if n < 0 else int(n)}" for rank, n in enumerate(found))
            raise _different(label, f"{what}: {each}", "")
    for marks, what, act in ((splits, "the split", "split"), (rows_0, "row 0 of the dataset", "make it")):
        if others := [str(rank) for rank, own in enumerate(marks) if own != marks[0]]:
            found_here = f"{what} of rank {', '.join(others)} is not that of rank 0"
            remedy = f", so seed before you {act}, with torch.manual_seed(...) or generator="
            raise _different(label, found_here, remedy)


def _different(label: str, found: str, remedy: str) -> EngineError:
    return EngineError(
        f"the loader {label!r} gave the ranks different data ({found}): each rank has to read the same data in the "
        f"same order{remedy}; for loaders of a rank's own rows give Trainer(parallel=DDP(data='local'))"
    )


class Feed:
    """Starts epochs of the train loader, and can resume in the middle of one or after one.

    It keeps the generators' states from the start of the epoch, which give the same batches again; those already taken
    are skipped, with torch's own samplers unread. A loader with `state_dict` keeps its position itself.
    """

    def __init__(self, state: State, device: torch.device, *, is_local: bool = False) -> None:
        self.taken = 0
        """How many batches of this epoch the loader gave or failed to give; the clock may have counted fewer."""
        self.is_exhausted = True
        """Has the loader ended the epoch? The loop sets both: an iterator that does would cost a frame a step."""
        self._before: dict[str, Any] | None = None
        """The position before the latest `look_ahead` that found a batch."""
        self.ahead: Any = None
        """That batch."""
        self._state = state
        self._device = device
        self._began: dict[str, Any] = {}
        self._order: torch.Tensor | None = None
        """The examples that the epoch loads, where an algorithm gave them."""
        self.dealt: Dealt | None = None
        """What deals the batches to this rank, if there are others."""
        self.is_local = is_local
        """Does the loader give the rows of this rank only?"""

    def taker_of_order(self, *, has_begun: bool) -> Callable[[Any], None]:
        """Return what takes the order of the next epoch; one that has begun keeps the order that it has."""
        if has_begun:
            return lambda _: None
        self._forget_order()

        def take(indices: Any) -> None:
            if self._order is not None:
                raise EngineError("another algorithm gave the order of this epoch already: leave one of them out")
            if self.is_local:
                raise ArgumentError("an epoch's order is that of all ranks: give all one DataLoader, parallel='ddp'")
            self._order = checked_order(self._state.train_dataloader, indices)

        return take

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
            is_read = self._dealing is None and self._order is None
            if is_read and (not is_skippable(loader) or loader.num_workers):  # they take indices at once
                return self._begin_at(iter(loader), 0)
            # torch would draw the order at the first batch, after whatever callbacks draw before it.
            order = self._ordered(order_of(loader, self._dealing))
            return self._begin_at(order.skip(loader, 0), 0, order)
        except Exception:
            self._restart_epoch(loader, self._began)  # a run that is saved now starts the epoch again
            self._forget_order()
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
            position |= {"began": self._began, "taken": self.taken, "order": self._order}
        return position

    def look_ahead(self, batches: Any) -> Iterator[Any]:
        """Ask whether the epoch has another batch; return an iterator over what is left of it.

        What is saved before that batch is taken is saved as if it had not been asked for.
        """
        if self.is_exhausted or (self._before is not None and self._before["taken"] == self.taken):
            return batches  # type: ignore[no-any-return]
        before = self.position(in_epoch=True)
        of_rank = batches if isinstance(batches, Dealt) else None
        ahead = list(itertools.islice(batches if of_rank is None else of_rank.batches, 1))
        self.is_exhausted = self._state.ranks.any(not ahead)
        if self.is_exhausted:
            return batches  # type: ignore[no-any-return]
        self._before, self.ahead = before, ahead[0]
        if of_rank is None:
            return itertools.chain(ahead, batches)
        of_rank.batches = itertools.chain(ahead, of_rank.batches)  # it deals the batch when that is taken
        return of_rank

    def end_epoch(self) -> None:
        """Keep how many batches the epoch gave, if its loader says something else; the first one is warned of."""
        state = self._state
        known, said = state.false_length, length_of(state.train_dataloader)
        if self._order is not None:
            self._forget_order()
            state.dataloader_len = train_length(state)
            return
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
        """Return an iterator over what is left of the epoch, None between epochs; the global generators change."""
        loader: Any = self._state.train_dataloader
        in_epoch = entry_of(position, "in_epoch", bool)
        own, persists = entry_of(position, "own", list), entry_of(position, "persists", bool)
        if (gave := position.get("gave")) is not None:  # of an older one
            if not isinstance(gave, list) or list(map(type, gave)) != [int, int]:
                raise CheckpointError(f"the checkpoint has no valid length of the train_dataloader: {gave!r:.80}")
            self._state.false_length = gave[0], gave[1]
        self._order = saved_order(loader, position.get("order"))  # older versions saved none
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
        began, taken = entry_of(position, "began", dict), entry_of(position, "taken", int)
        loader: Any = self._enter_epoch()
        length = position["batches"] if self._order is None else self._state.dataloader_len
        has_order = is_skippable(loader) or self._dealing is not None or self._order is not None
        if taken < 0 or (length is not None and taken > length and (has_order or isinstance(loader, (list, tuple)))):
            raise CheckpointError(f"the checkpoint was saved after {taken} of {length} batches of the epoch")
        # Before the generators go back: starting workers draws, and the saved run did so in an earlier epoch.
        order = restart_workers(loader, persists=entry_of(began, "persists", bool), ranks=self._dealing)
        order = self._ordered(order)
        self._restart_epoch(loader, began)
        iterator = order.skip(loader, taken) if order is not None and has_order else _without_the_first(loader, taken)
        put_back(loader, own)  # last: skipping draws from them, and so may a collate_fn
        return self._begin_at(iterator, taken, order if has_order else None)

    def _begin_at(
        self, iterator: Iterator[Any], taken: int, order: IndexOrder | ListOrder | None = None
    ) -> Iterator[Any]:
        self.taken, self.is_exhausted, self._before, self.ahead = taken, False, None, None
        if self._state.world_size == 1:
            return iterator
        self.dealt = Dealt(iterator, self._state, None if order is None or self._dealing is None else order.sizes)
        return self.dealt

    @property
    def _dealing(self) -> Ranks | None:
        """The ranks among which the rows of each batch are dealt here, None if the loader does so or there is one."""
        return None if self._state.world_size == 1 or self.is_local else self._state.ranks

    def _forget_order(self) -> None:
        if self._order is not None:
            self._order = self._state.false_length = None

    def _ordered(self, order: Any) -> Any:
        return order if self._order is None else order.follow(self._order)

    def _enter_epoch(self) -> Any:
        loader: Any = self._state.train_dataloader
        if self._order is not None:  # the length of this epoch, and not of the next
            self._state.false_length = len(loader), len(in_batches(loader.batch_sampler, self._order))
        enter_loader(self._state)
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
    if type(loader) in (list, tuple):  # a subclass may iterate otherwise
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


class BeforeBatch:
    """The generators before the loader was asked for a batch, so that a batch that fails can be retried.

    All are copied at each batch only if the loader draws, as one of its first batches tells: that takes 0.1 ms.
    """

    def __init__(self, state: State, device: torch.device) -> None:
        loader: Any = state.train_dataloader
        self.is_needed = state.world_size == 1 and type(loader) not in (list, tuple)
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
            self._draws = bool(self._untold) or plain(self._kept) != plain(self._copied())

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


def plain(copied: Any) -> Any:
    """Return copies of generators as what can be compared."""
    if isinstance(copied, GlobalGenerators):
        return plain([copied.of_cpu, copied.of_device, copied.of_python, copied.of_numpy])
    if isinstance(copied, dict):
        return {key: plain(value) for key, value in copied.items()}
    if isinstance(copied, (list, tuple)):
        return [plain(value) for value in copied]
    return copied.tolist() if hasattr(copied, "tolist") else copied
