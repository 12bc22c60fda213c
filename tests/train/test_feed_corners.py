"""What a position of the train loader has to hold beside the order: generators that others draw from, and failures."""

import copy
import gc
import itertools
import warnings
import weakref
from collections.abc import Generator

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, SequentialSampler

from engine_core import Callback, State, Trainer
from engine_core.errors import CheckpointError, CheckpointWarning
from engine_core.randomness import GlobalGenerators
from engine_core.trainer.feed import Feed
from engine_core.trainer.loaders import why_inexact

CPU = torch.device("cpu")


class Rows(Dataset):
    """Eleven rows, of which one can't be read the first time, if asked for."""

    fails_at = None

    def __len__(self):
        return 11

    def __getitem__(self, place):
        if place == self.fails_at:
            self.fails_at = None
            raise OSError("no such row for now")
        return torch.tensor([place])


def feed_of(made):
    return Feed(State(train_dataloader=made, seed=1), CPU)


def generator():
    return torch.Generator().manual_seed(5)


def shown(batches):
    return [batch.tolist() for batch in batches]


def drawing_collate():
    own = generator()

    def collate(rows):
        return torch.stack(rows) + torch.rand(1, generator=own)

    return DataLoader(Rows(), 3, shuffle=True, generator=own, collate_fn=collate)


def of_a_batch_sampler():
    return DataLoader(Rows(), batch_sampler=BatchSampler(RandomSampler(Rows(), generator=generator()), 3, False))


def drawing_again_and_again():
    return DataLoader(Rows(), 3, sampler=RandomSampler(Rows(), num_samples=40, generator=generator()))


@pytest.mark.parametrize("done", [0, 1, 2, 4])
@pytest.mark.parametrize("make", [drawing_collate, of_a_batch_sampler, drawing_again_and_again])
def test_the_loaders_generators_continue_where_they_were(make, done):
    first = feed_of(make())
    list(first.start_epoch())
    iterator = first.start_epoch()
    first.taken += len(list(itertools.islice(iterator, done)))
    position, generators = first.position(in_epoch=True), GlobalGenerators.capture(CPU)
    rest = shown(iterator), shown(first.start_epoch())

    second = feed_of(make())
    resumed = second.resume(position)
    generators.restore()
    assert (shown(resumed), shown(second.start_epoch())) == rest


def test_what_others_draw_before_the_first_batch_does_not_change_the_order():
    torch.manual_seed(3)
    iterator = feed_of(DataLoader(Rows(), 3, shuffle=True)).start_epoch()
    torch.rand(9)
    torch.manual_seed(3)
    assert shown(iterator) == shown(DataLoader(Rows(), 3, shuffle=True))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_that_could_not_be_read_is_not_read_again(workers):
    made = DataLoader(Rows(), 3, num_workers=workers)
    made.dataset.fails_at = 4
    first = feed_of(made)
    iterator = first.start_epoch()
    next(iterator)
    with pytest.raises(OSError, match="for now"):
        next(iterator)
    next(iterator)
    first.taken = 3  # the loop counts the one that failed when it has let savers save
    rest = feed_of(DataLoader(Rows(), 3, num_workers=workers)).resume(first.position(in_epoch=True))
    assert shown(rest) == shown(iterator) == [[[9], [10]]]


def test_a_resumed_epoch_continues_after_a_batch_that_could_not_be_read():
    first = feed_of(DataLoader(Rows(), 3))
    next(first.start_epoch())
    first.taken = 1
    made = DataLoader(Rows(), 3)
    made.dataset.fails_at = 4
    rest = feed_of(made).resume(first.position(in_epoch=True))
    with pytest.raises(OSError, match="for now"):
        next(rest)
    assert shown(rest) == [[[6], [7], [8]], [[9], [10]]]


def test_a_batch_that_the_clock_has_not_counted_is_not_read_again(tmp_path):
    class Once(Callback):
        raises = True

        def batch_start(self, state, logger):
            if state.timestamp.batch == 1 and self.raises:
                self.raises = False
                raise RuntimeError("once")

    def make(**settings):
        torch.manual_seed(2)
        rows = [(torch.randn(2), torch.randn(1)) for _ in range(12)]
        loader, model = DataLoader(rows, 2, shuffle=True), torch.nn.Linear(2, 1)
        loss, sgd = torch.nn.MSELoss(), lambda parameters: torch.optim.SGD(parameters, lr=0.1)
        return Trainer(model, loader, max_duration="2ep", loss_fn=loss, optimizers=sgd, seed=4, **settings)

    saver = ("checkpoint_saver", {"folder": tmp_path, "interval": "1ba", "keep_last": None})
    with make(callbacks=[Once(), saver]) as trainer:
        with pytest.raises(RuntimeError, match="once"):
            trainer.fit()
        trainer.fit()
    with make(load_path=tmp_path / "ep0-ba3") as resumed:
        resumed.fit()
    assert resumed.state.timestamp.batch == trainer.state.timestamp.batch == 11
    assert torch.equal(resumed.state.model.weight, trainer.state.model.weight)


def test_only_a_generator_is_treated_as_one_that_dies():
    assert not isinstance(feed_of([1, 2]).start_epoch(), Generator)
    assert isinstance(feed_of(n for n in range(3)).start_epoch(), Generator)


def test_the_feed_keeps_no_worker_processes():
    feed = feed_of(DataLoader(Rows(), 3, num_workers=1))
    iterator = feed.start_epoch()
    worker = iterator._workers[0]
    del iterator
    worker.join(10)
    assert not worker.is_alive()


def test_a_loader_with_workers_that_persist_ends_with_its_last_user():
    made = DataLoader(Rows(), 3, num_workers=1, persistent_workers=True)
    first = feed_of(made)
    list(first.start_epoch())
    second = feed_of(DataLoader(Rows(), 3, num_workers=1, persistent_workers=True))
    second.resume(first.position(in_epoch=False))
    held = weakref.ref(second._state.train_dataloader)
    gc.disable()
    try:
        del second._state.train_dataloader, second
        assert held() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("settings", [{"batch_size": 4}, {"batch_size": 3, "drop_last": True}])
def test_a_loader_of_another_size_is_refused_in_mid_epoch_and_named_between_epochs(settings):
    first = feed_of(DataLoader(Rows(), 3))
    next(first.start_epoch())
    other = feed_of(DataLoader(Rows(), **settings))
    names = rf"batch_size 3 and 4 batches, and this one has batch_size {settings['batch_size']} and 3 batches"
    with pytest.raises(CheckpointError, match=names):
        other.resume(first.position(in_epoch=True))
    with pytest.warns(CheckpointWarning, match=names):
        assert other.resume(first.position(in_epoch=False)) is None


def own():
    return DataLoader(Rows(), 3, shuffle=True, generator=generator())


MISSING = object()
WRONG = [MISSING, None, True, -1, 10**30, 1.5, "x", [], [None], {}, torch.zeros(3), [torch.zeros(3)]]
PLACES = [
    *([key] for key in ("in_epoch", "batch_size", "batches", "own", "persists", "began", "taken")),
    *(["began", key] for key in ("global", "own", "persists")),
    *(["began", "global", key] for key in ("torch", "python")),
]


@pytest.mark.parametrize("in_epoch", [True, False])
@pytest.mark.parametrize("place", PLACES, ids="/".join)
def test_a_wrong_position_raises_only_checkpoint_errors(place, in_epoch):
    """A value that is right by chance may pass, as another state of the same kind."""
    *path, key = place
    if path and not in_epoch:
        return
    first = feed_of(own())
    next(first.start_epoch())
    right = first.position(in_epoch=in_epoch)
    for value in WRONG:
        position = copy.deepcopy(right)
        inner = position
        for step in path:
            inner = inner[step]
        inner[key] = value
        if value is MISSING:
            del inner[key]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CheckpointWarning)
            try:
                feed_of(own()).resume(position)
            except CheckpointError:
                continue
        assert value is True or not in_epoch


@pytest.mark.parametrize("position", [None, 3, [], {}, "x"])
def test_anything_but_a_position_is_refused(position):
    with pytest.raises(CheckpointError, match="no valid position of the train_dataloader"):
        feed_of(own()).resume(position)


@pytest.mark.parametrize("taken", [-1, 5, 10**30])
@pytest.mark.parametrize("make", [own, lambda: [1, 2, 3, 4]])
def test_a_count_that_no_epoch_has_is_refused(make, taken):
    first = feed_of(make())
    first.start_epoch()
    with pytest.raises(CheckpointError, match="of 4 batches of the epoch"):
        feed_of(make()).resume(first.position(in_epoch=True) | {"taken": taken})


def test_a_loader_that_does_not_know_its_state_is_refused():
    class Keeping(list):
        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            raise KeyError("at")

    first = feed_of(Keeping([1]))
    with pytest.raises(CheckpointError, match="can't load its state: KeyError"):
        feed_of(Keeping([1])).resume(first.position(in_epoch=False))


class Foreign:
    """Four batches that `make` makes, read again when they are skipped."""

    def __init__(self, make=torch.tensor, count=4):
        self.make, self.count = make, count

    def __iter__(self):
        return map(self.make, range(self.count))


def after_three():
    first = feed_of(Foreign())
    next(itertools.islice(first.start_epoch(), 2, None))
    first.taken += 3
    return first.position(in_epoch=True)


def test_a_loader_that_has_become_shorter_is_refused():
    with pytest.raises(CheckpointError, match="has fewer than the 3 batches"):
        feed_of(Foreign(count=2)).resume(after_three())


def test_a_skipped_batch_is_freed_before_the_next_is_made():
    made = []

    def make(number):
        assert all(batch() is None for batch in made)
        batch = torch.tensor(number)
        made.append(weakref.ref(batch))
        return batch

    assert shown(feed_of(Foreign(make)).resume(after_three())) == [3]
    assert len(made) == 4


def test_a_subclass_of_a_known_sampler_may_do_anything():
    class Other(SequentialSampler):
        pass

    assert "a Other, has no state_dict" in why_inexact(DataLoader(Rows(), 3, sampler=Other(Rows())))
