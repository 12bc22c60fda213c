"""The rest of an epoch, resumed in another process: the same batches, and nothing read that was trained on."""

import itertools

import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from engine_core import State
from engine_core.errors import CheckpointError
from engine_core.randomness import GlobalGenerators
from engine_core.trainer.feed import Feed
from engine_core.trainer.loaders import why_inexact

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


class Backwards(Sampler):
    """A custom sampler."""

    def __iter__(self):
        return iter(range(10, -1, -1))

    def __len__(self):
        return 11


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(11))


class Rereadable:
    def __iter__(self):
        return iter(torch.arange(4))


class OnlyNext:
    """An iterator that can't be asked for one, which `next` and a loop's own `iter` do without."""

    def __init__(self):
        self.batches = iter(torch.arange(4))

    def __next__(self):
        return next(self.batches)


class GivesOnlyNext:
    def __iter__(self):
        return OnlyNext()


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
    "weighted": lambda: loader(sampler=WeightedRandomSampler([1.0] * 11, 11)),
    "weighted, own generator": lambda: loader(sampler=WeightedRandomSampler([1.0] * 11, 11, generator=generator())),
    "subset": lambda: loader(sampler=SubsetRandomSampler(range(9))),
    "distributed": lambda: loader(sampler=DistributedSampler(Rows(), num_replicas=1, rank=0, seed=3)),
    "noisy": lambda: loader(Noisy(), shuffle=True),
    "two workers": lambda: loader(shuffle=True, num_workers=2),
    "persistent workers": lambda: loader(shuffle=True, num_workers=1, persistent_workers=True),
    "persistent workers, own generator": lambda: loader(
        shuffle=True, num_workers=1, persistent_workers=True, generator=generator()
    ),
}
FOREIGN = {
    "a sampler of one's own": lambda: loader(sampler=Backwards()),
    "a batch sampler of one's own": lambda: DataLoader(Rows(), batch_sampler=[[1, 2], [3, 4], [5]]),
    "no batching": lambda: DataLoader(Rows(), batch_size=None, shuffle=True),
    "a stream": lambda: loader(Stream()),
    "an iterable": Rereadable,
    "an iterable that is its own iterator": Reshuffling,
    "an iterable whose iterator has only __next__": GivesOnlyNext,
}
# Each starts processes: here for the full ring; the quick one has the loaders with a persistent worker.
SLOW = {name: pytest.param(make, marks=pytest.mark.full) for name, make in LOADERS.items() if name == "two workers"}
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
    while (batch := next(iterator, None)) is not None:
        yield batch


def after(batches, made):
    """Return the position after some batches of an epoch, and its iterator."""
    feed = feed_of(made)
    iterator = feed.start_epoch()
    for _ in range(batches):
        take(feed, iterator)
    return feed.position(in_epoch=True), iterator


def shown(batches):
    return [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in batches]


@pytest.mark.parametrize("epoch", [0, 1, 2])
@pytest.mark.parametrize("done", [0, 1, 2, 3, "between"])
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


@pytest.mark.parametrize("make", list(LOADERS.values())[:-3], ids=list(LOADERS)[:-3])
def test_what_was_trained_on_is_not_read_again(make):
    position, _ = after(2, make())
    made = make()
    list(feed_of(made).resume(position))
    assert len(made.dataset.read) == len(made) * 3 - 6 - (made.drop_last is False and len(made.sampler) % 3 > 0)


@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
def test_the_loader_is_the_same_afterwards(make):
    position, _ = after(1, make())
    made = make()
    batch_sampler, sampler = made.batch_sampler, made.batch_sampler.sampler
    rest = feed_of(made).resume(position)
    assert (made.batch_sampler, made.batch_sampler.sampler) == (batch_sampler, sampler)
    assert len(list(rest)) == len(made) - 1
    assert sum(len(batch) for batch in made) == len(sampler) - (len(sampler) % 3 if made.drop_last else 0)


@pytest.mark.parametrize("done", [0, 2])
def test_an_evaluation_on_the_train_loader_sees_all_of_it_while_the_epoch_is_resumed(done):
    position, _ = after(done, loader(shuffle=True))
    made = loader(shuffle=True)
    rest = feed_of(made).resume(position)
    assert sorted(itertools.chain(*shown(made))) == [[n] for n in range(11)]
    assert len(list(rest)) == 4 - done


def test_a_loader_that_was_in_use_continues_as_a_new_one_does():
    make = LOADERS["persistent workers"]
    torch.manual_seed(7)
    position, rest = after(1, make())
    made = make()
    list(made)
    torch.manual_seed(99)
    assert shown(feed_of(made).resume(position)) == shown(rest)


def test_a_distributed_sampler_continues_in_the_epoch_that_was_saved():
    make = LOADERS["distributed"]
    first = feed_of(make(), epoch=4)
    iterator = first.start_epoch()
    take(first, iterator)
    assert shown(feed_of(make(), epoch=4).resume(first.position(in_epoch=True))) == shown(iterator)


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


def test_a_loader_with_a_state_is_used_as_it_is():
    position, _ = after(1, Counted())
    assert position["loader"] == {"at": 1}
    assert list(feed_of(Counted()).resume(position)) == [2, 3, 4]


def test_a_loader_with_a_state_has_it_back_between_epochs_too():
    first, made = feed_of(Counted(at=3)), Counted()
    assert feed_of(made).resume(first.position(in_epoch=False)) is None
    assert made.at == 3


@pytest.mark.parametrize(("saved", "now"), [(Counted, loader), (loader, Counted), (loader, LOADERS["own generator"])])
def test_a_loader_of_another_kind_than_the_saved_one_is_refused(saved, now):
    position, _ = after(0, saved())
    with pytest.raises(CheckpointError, match="the saved train_dataloader had"):
        feed_of(now()).resume(position)


@pytest.mark.parametrize("make", [*LOADERS.values(), *LISTS.values(), Counted], ids=[*LOADERS, *LISTS, "state"])
def test_loaders_that_are_resumed_exactly_cause_no_warning(make):
    assert why_inexact(make()) is None


@pytest.mark.parametrize("make", FOREIGN.values(), ids=FOREIGN)
def test_the_reason_is_given_for_others(make):
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
