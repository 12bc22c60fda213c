"""The rest of an epoch, resumed in another process: the same batches, none read again; and positions that are wrong."""

import copy
import itertools
import warnings

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from engine_core import State
from engine_core.errors import CheckpointError, CheckpointWarning
from engine_core.randomness import GlobalGenerators
from engine_core.trainer.feed import Feed
from engine_core.trainer.loaders import why_inexact

from .parts import at, rows, trainer

CPU = torch.device("cpu")


class Rows(Dataset):
    """Eleven rows that remember which of them were read."""

    def __init__(self):
        self.read = []

    def __len__(self):
        return 11

    def __getitem__(self, place):
        self.read.append(place)
        return torch.tensor([place])


class Noisy(Rows):
    """Draws from torch's global generator for each row, as an augmentation does."""

    def __getitem__(self, place):
        return super().__getitem__(place) + torch.rand(1)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(11))


class Reshuffling:
    """Its own iterator, which shuffles each time that it is asked for one."""

    def __iter__(self):
        self.batches = iter(torch.randperm(9))
        return self

    def __next__(self):
        return next(self.batches)


def loader(dataset=None, **settings):
    return DataLoader(Rows() if dataset is None else dataset, batch_size=3, **settings)


def generator():
    return torch.Generator().manual_seed(5)


LOADERS = {
    "in order": loader,
    "shuffled": lambda: loader(shuffle=True),
    "shuffled, last dropped": lambda: loader(shuffle=True, drop_last=True),
    "own generator": lambda: loader(shuffle=True, generator=generator()),
    "weighted, own generator": lambda: loader(sampler=WeightedRandomSampler([1.0] * 11, 11, generator=generator())),
    "subset": lambda: loader(sampler=SubsetRandomSampler(range(9))),
    "distributed": lambda: loader(sampler=DistributedSampler(Rows(), num_replicas=1, rank=0, seed=3)),
    "noisy": lambda: loader(Noisy(), shuffle=True),
    "two workers": lambda: loader(shuffle=True, num_workers=2),
    "persistent workers, own generator": lambda: loader(
        shuffle=True, num_workers=1, persistent_workers=True, generator=generator()
    ),
}
FOREIGN = {
    "a sampler of one's own": lambda: loader(sampler=range(10, -1, -1)),
    "a batch sampler of one's own": lambda: DataLoader(Rows(), batch_sampler=[[1, 2], [3, 4], [5]]),
    "no batching": lambda: DataLoader(Rows(), batch_size=None, shuffle=True),
    "a stream": lambda: loader(Stream()),
    "an iterable that is its own iterator": Reshuffling,
}
# It starts processes: here for the full ring; the quick one has the loader with a persistent worker.
SLOW = {"two workers": pytest.param(LOADERS["two workers"], marks=pytest.mark.full)}
LISTS = {"a list": lambda: [torch.tensor([n]) for n in range(4)], "a tuple": lambda: (1, 2, 3, 4)}


def feed_of(made, epoch=0):
    feed = Feed(State(train_dataloader=made, seed=1), CPU)
    feed._state.timestamp = feed._state.timestamp._replace(epoch=epoch)
    return feed


def started(feed, epoch):
    feed._state.timestamp = feed._state.timestamp._replace(epoch=epoch)
    return feed.start_epoch()


def take(feed, iterator):
    """Take a batch and count it, as the loop does."""
    batch = next(iterator)
    feed.taken += 1
    return batch


def left(iterator):
    """Yield the rest of the batches, asking only for the next one, as the loop does."""
    return iter(lambda: next(iterator, None), None)


def after(batches, made):
    """Return the position after some batches of an epoch, and its iterator."""
    feed = feed_of(made)
    iterator = feed.start_epoch()
    for _ in range(batches):
        take(feed, iterator)
    return feed.position(in_epoch=True), iterator


def shown(batches):
    return [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in batches]


@pytest.mark.parametrize(("done", "epoch"), [(0, 0), (1, 2), (3, 1), ("between", 0), ("between", 1)])
@pytest.mark.parametrize(
    "make", [*(LOADERS | SLOW).values(), *LISTS.values(), *FOREIGN.values()], ids=[*LOADERS, *LISTS, *FOREIGN]
)
def test_the_rest_of_the_run_is_that_of_the_uninterrupted_one(make, done, epoch):
    """The generators are restored after the loader is resumed, as a Trainer does it."""
    torch.manual_seed(7)
    first = feed_of(make())
    for earlier in range(epoch):
        list(left(started(first, earlier)))
    in_epoch = done != "between"
    iterator = left(started(first, epoch)) if in_epoch else None
    for _ in range(done if in_epoch else 0):
        take(first, iterator)
    position, generators = first.position(in_epoch=in_epoch), GlobalGenerators.capture(CPU)
    rest = shown(iterator or ())
    after = shown(left(started(first, epoch + in_epoch))), torch.rand(1)

    torch.manual_seed(99)
    second = feed_of(make(), epoch=epoch)
    resumed = second.resume(position)
    generators.restore()
    assert (resumed is not None) == in_epoch
    assert shown(() if resumed is None else left(resumed)) == rest
    assert (shown(left(started(second, epoch + in_epoch))), torch.rand(1)) == after


@pytest.mark.parametrize("make", list(LOADERS.values())[:-2], ids=list(LOADERS)[:-2])
def test_what_was_trained_on_is_not_read_again(make):
    position, _ = after(2, make())
    made = make()
    list(feed_of(made).resume(position))
    assert len(made.dataset.read) == len(made) * 3 - 6 - (made.drop_last is False and len(made.sampler) % 3 > 0)


@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
def test_the_loader_is_the_same_afterwards(make):
    position, _ = after(1, make())
    made = make()
    samplers = made.batch_sampler, made.batch_sampler.sampler
    rest = feed_of(made).resume(position)
    assert (made.batch_sampler, made.batch_sampler.sampler) == samplers
    assert len(list(rest)) == len(made) - 1
    assert sum(map(len, made)) == len(made.sampler) - (len(made.sampler) % 3 if made.drop_last else 0)


class Counted:
    """A loader that keeps its position itself."""

    def __init__(self, at=0):
        self.at = at

    def __iter__(self):
        while self.at < 4:
            self.at += 1
            yield self.at
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def test_a_loader_with_a_state_has_it_back_between_epochs_too():
    first, made = feed_of(Counted(at=3)), Counted()
    assert feed_of(made).resume(first.position(in_epoch=False)) is None
    assert made.at == 3


@pytest.mark.parametrize(("saved", "now"), [(Counted, loader), (loader, Counted), (loader, LOADERS["own generator"])])
def test_a_loader_of_another_kind_than_the_saved_one_is_refused(saved, now):
    position, _ = after(0, saved())
    with pytest.raises(CheckpointError, match="the saved train_dataloader had"):
        feed_of(now()).resume(position)


def test_the_reason_is_given_for_those_that_are_not_resumed_exactly_and_for_no_others():
    for make in (*LOADERS.values(), *LISTS.values(), Counted):
        assert why_inexact(make()) is None
    for make in FOREIGN.values():
        why = why_inexact(make())
        assert "read again" in why and "StatefulDataLoader" in why


def test_a_loader_that_iterates_in_its_own_way_may_do_anything():
    class Doubled(DataLoader):
        def __iter__(self):
            return map(torch.neg, super().__iter__())

    position, rest = after(2, Doubled(Rows(), 3, shuffle=True))
    made = Doubled(Rows(), 3, shuffle=True)
    assert "has an __iter__ of its own" in why_inexact(made)
    assert shown(feed_of(made).resume(position)) == shown(rest)


class Failing(Rows):
    """Rows of which one can't be read the first time."""

    fails_at = None

    def __getitem__(self, place):
        if place == self.fails_at:
            self.fails_at = None
            raise OSError("no such row for now")
        return super().__getitem__(place)


def drawing_collate():
    own = generator()
    draws = lambda rows: torch.stack(rows) + torch.rand(1, generator=own)  # noqa: E731
    return DataLoader(Rows(), 3, shuffle=True, generator=own, collate_fn=draws)


def of_a_batch_sampler():
    return DataLoader(Rows(), batch_sampler=BatchSampler(RandomSampler(Rows(), generator=generator()), 3, False))


def drawing_again_and_again():
    return DataLoader(Rows(), 3, sampler=RandomSampler(Rows(), num_samples=40, generator=generator()))


@pytest.mark.parametrize("done", [0, 2])
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


@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_that_could_not_be_read_is_not_read_again(workers):
    made = DataLoader(Failing(), 3, num_workers=workers)
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


def test_a_batch_that_the_clock_has_not_counted_is_not_read_again(tmp_path):
    once = iter([True])

    def fail_once(state):
        if state.timestamp.batch == 1 and next(once, False):
            raise RuntimeError("once")

    def make(**settings):
        loader = DataLoader(TensorDataset(*rows(12)), 2, shuffle=True)
        return trainer(loader, max_duration="2ep", seed=4, **settings)

    saver = ("checkpoint_saver", {"folder": tmp_path, "interval": "1ba", "keep_last": None})
    with make(callbacks=[at("batch_start", fail_once), saver]) as made:
        with pytest.raises(RuntimeError, match="once"):
            made.fit()
        made.fit()
    with make(load_path=tmp_path / "ep0-ba3") as resumed:
        resumed.fit()
    assert resumed.state.timestamp.batch == made.state.timestamp.batch == 11
    assert torch.equal(resumed.state.model.weight, made.state.model.weight)


def test_the_feed_keeps_no_worker_processes():
    feed = feed_of(DataLoader(Rows(), 3, num_workers=1))  # which lives on
    iterator = feed.start_epoch()
    worker = iterator._workers[0]
    del iterator
    worker.join(10)
    assert not worker.is_alive()


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


own = LOADERS["own generator"]
MISSING = object()
WRONG = [MISSING, None, True, -1, 10**30, 1.5, "x", [], [None], {}, torch.zeros(3), [torch.zeros(3)]]
PLACES = [
    *([key] for key in ("in_epoch", "batch_size", "batches", "own", "persists", "began", "taken")),
    *(["began", key] for key in ("global", "own", "persists")),
    *(["began", "global", key] for key in ("torch", "python")),
]


@pytest.mark.parametrize("place", PLACES, ids="/".join)
def test_a_wrong_position_raises_only_checkpoint_errors(place):
    """A value that is right by chance may pass, as another state of the same kind."""
    *path, key = place
    first = feed_of(own())
    next(first.start_epoch())
    for in_epoch in (True,) if path else (True, False):
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


def test_anything_but_a_position_is_refused_and_a_loader_that_does_not_know_its_state_or_has_become_shorter():
    for position in (None, 3, [], {}, "x"):
        with pytest.raises(CheckpointError, match="no valid position of the train_dataloader"):
            feed_of(own()).resume(position)

    class Keeping(list):
        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            raise KeyError("at")

    with pytest.raises(CheckpointError, match="can't load its state: KeyError"):
        feed_of(Keeping([1])).resume(feed_of(Keeping([1])).position(in_epoch=False))

    position, _ = after(3, map(torch.tensor, range(4)))
    with pytest.raises(CheckpointError, match="has fewer than the 3 batches"):
        feed_of(map(torch.tensor, range(2))).resume(position)


@pytest.mark.parametrize("taken", [-1, 5, 10**30])
@pytest.mark.parametrize("make", [own, lambda: [1, 2, 3, 4]])
def test_a_count_that_no_epoch_has_is_refused(make, taken):
    first = feed_of(make())
    first.start_epoch()
    with pytest.raises(CheckpointError, match="of 4 batches of the epoch"):
        feed_of(make()).resume(first.position(in_epoch=True) | {"taken": taken})
