"""The batch that comes next, looked at without a trace: the run continues as it would have without the look."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader

from ..batch import move_batch
from ..errors import ArgumentError
from ..loop import Phase
from ..randomness import GlobalGenerators, seed_generators
from .feed import check_dealable, plain
from .loaders import has_persistent_workers, keeps_position, of_loader, parts_of, put_back, why_inexact
from .session import Session


@contextmanager
def peeking(session: Session) -> Iterator[None]:
    """Let `state.peek_batch` work within the block."""
    loop = session.state.loop
    loop.peek = partial(_peek, session)
    try:
        yield
    finally:
        loop.peek = None


def _peek(session: Session) -> Any:
    state: Any = session.state
    if state.train_dataloader is None:
        raise ArgumentError("peek_batch: there is no loader to look into: give Trainer(train_dataloader=...)")
    kept = GlobalGenerators.capture(session.device)
    try:
        if session.status.phase is not Phase.TRAINING:  # at INIT: `fit` seeds them so before its first batch
            seed_generators(state.derive_seed("rank") if state.rank else state.seed)
        batch = _of_next_epoch(session) if session.batches is None else _in_epoch(session)
    finally:
        kept.restore()
    return move_batch(copy.deepcopy(batch), session.device)


def _of_next_epoch(session: Session) -> Any:
    state, feed, loader = session.state, session.feed, session.state.train_dataloader
    _check_starts_over(loader)
    if state.world_size > 1 and not feed.is_local:
        check_dealable(loader, "train", state.ranks)
    shown = ("dataloader", "dataloader_label", "dataloader_len", "is_placeholder", "timestamp")
    kept, fed = {name: getattr(state, name) for name in shown}, dict(vars(feed))
    if session.batches is not None:
        state.timestamp = state.timestamp.to_next_epoch()
    with _unmoved(loader):
        found = list(islice(feed.start_epoch(), 1))
        vars(feed).update(fed)
    for name, value in kept.items():
        setattr(state, name, value)
    if not found:
        raise ArgumentError("peek_batch: the train_dataloader gives no batches")
    return found[0]


def _in_epoch(session: Session) -> Any:
    feed, device, loader = session.feed, session.device, session.state.train_dataloader
    before = plain((GlobalGenerators.capture(device), of_loader(loader)))
    batches: Any = feed.look_ahead(session.batches)
    if feed.is_exhausted:
        return _of_next_epoch(session)
    batch = feed.ahead
    # What drew has to draw when the batch is due, after whatever else draws until then.
    if session.state.ranks.any(plain((GlobalGenerators.capture(device), of_loader(loader))) != before):
        if why := why_inexact(loader):  # type: ignore[arg-type]
            raise ArgumentError(f"peek_batch: the next batch of an epoch that has begun can't be given twice: {why}")
        batches = feed.resume(feed.position(in_epoch=True))
    session.batches = batches
    return batch


def _check_starts_over(loader: Any) -> None:
    """Raise if a loader, or what it holds, gives each item once, as far as can be seen."""
    parts = [] if keeps_position(loader) and not isinstance(loader, DataLoader) else parts_of(loader)
    held = [item for part in parts if not keeps_position(part) for item in vars(part).items() if item[0] != "_iterator"]
    for name, value in [("train_dataloader", loader), *held]:
        if isinstance(value, Iterator) and not keeps_position(value):
            raise ArgumentError(
                f"peek_batch: {name} is a {type(value).__name__}, which gives each item once: give a list of "
                "batches, train_dataloader=[*batches], or give it state_dict() and load_state_dict(state)"
            )


@contextmanager
def _unmoved(loader: Any) -> Iterator[None]:
    """Have a loader that the block can read, and that is then as it was: attributes, generators and positions."""
    own, is_torchs, parts = of_loader(loader)["own"], isinstance(loader, DataLoader), parts_of(loader)
    attributes = [(vars(part), dict(vars(part))) for part in parts]
    moving = [part for part in parts if keeps_position(part) and not (part is loader and is_torchs)]
    states = [(part, copy.deepcopy(part.state_dict())) for part in moving]
    try:
        if is_torchs and keeps_position(loader) and loader._iterator is not None:  # noqa: SLF001  torchdata's, in use
            loader.load_state_dict(loader.state_dict())
        elif has_persistent_workers(loader):
            loader._iterator = None  # noqa: SLF001  the block gets workers of its own
        yield
    finally:
        for present, former in attributes:
            present.clear()
            present.update(former)
        for part, state in states:
            part.load_state_dict(state)
        put_back(loader, own)
