"""The rest of an epoch, gone on with in another process: the same batches, and nothing read that was trained on."""

import itertools

import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from engine_core import State
from engine_core.errors import CheckpointError
from engine_core.randomness import GlobalGenerators
from engine_core.trainer.feed import Feed, why_inexact

CPU = torch.device("cpu")


class Rows(Dataset):
    """Eleven rows that remember who was read."""

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
    """A sampler of somebody's own."""

    def __iter__(self):
        return iter(range(10, -1, -1))

    def __len__(self):
        return 11


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(11))


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
}
FOREIGN = {
    "a sampler of one's own": lambda: loader(sampler=Backwards()),
    "a batch sampler of one's own": lambda: DataLoader(Rows(), batch_sampler=[[1, 2], [3, 4], [5]]),
    "no batching": lambda: DataLoader(Rows(), batch_size=None, shuffle=True),
    "a stream": lambda: loader(Stream()),
    "an iterable": lambda: itertools.repeat(torch.zeros(1), 4),
}
LISTS = {"a list": lambda: [torch.tensor([n]) for n in range(4)], "a tuple": lambda: (1, 2, 3, 4)}


def feed_of(made, done=0, epoch=0):
    state = State(train_dataloader=made, seed=1)
    state.timestamp = state.timestamp._replace(epoch=epoch, batch_in_epoch=done)
    return Feed(state, CPU)


def shown(batches):
    return [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in batches]


@pytest.mark.parametrize("done", [0, 1, 2, 3])
@pytest.mark.parametrize(
    "make", [*LOADERS.values(), *LISTS.values(), *FOREIGN.values()], ids=[*LOADERS, *LISTS, *FOREIGN]
)
def test_the_rest_of_the_epoch_is_that_of_the_uninterrupted_one(make, done):
    """The generators are put back after the loader goes on, as a Trainer does."""
    torch.manual_seed(7)
    first = feed_of(make())
    iterator = first.start_epoch()
    for _ in range(done):
        next(iterator)
    position, generators = first.position(), GlobalGenerators.capture(CPU)
    rest, after = shown(iterator), torch.rand(1)

    torch.manual_seed(99)
    resumed = feed_of(make(), done).resume(position)
    generators.restore()
    assert shown(resumed) == rest
    assert torch.equal(torch.rand(1), after)


@pytest.mark.parametrize("make", list(LOADERS.values())[:-2], ids=list(LOADERS)[:-2])
def test_what_was_trained_on_is_not_read_again(make):
    first = feed_of(make())
    next(first.start_epoch())
    made = make()
    list(feed_of(made, 2).resume(first.position()))
    assert len(made.dataset.read) == len(made) * 3 - 6 - (made.drop_last is False and len(made.sampler) % 3 > 0)


@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
def test_the_loader_is_afterwards_what_it_was(make):
    first = feed_of(make())
    first.start_epoch()
    made = make()
    sampler = made.batch_sampler.sampler
    rest = feed_of(made, 1).resume(first.position())
    next(rest)
    assert made.batch_sampler.sampler is sampler
    assert sum(len(batch) for batch in made) == len(sampler) - (len(sampler) % 3 if made.drop_last else 0)


def test_an_evaluation_on_the_train_loader_sees_all_of_it_while_the_epoch_is_resumed():
    first = feed_of(loader(shuffle=True))
    first.start_epoch()
    made = loader(shuffle=True)
    rest = feed_of(made, 2).resume(first.position())
    next(rest)
    assert sorted(itertools.chain(*shown(made))) == [[n] for n in range(11)]


def test_a_distributed_sampler_goes_on_in_the_epoch_that_was_saved():
    make = LOADERS["distributed"]
    first = feed_of(make(), epoch=4)
    iterator = first.start_epoch()
    next(iterator)
    assert shown(feed_of(make(), 1, epoch=4).resume(first.position())) == shown(iterator)


class Counted:
    """A loader that keeps its position itself."""

    def __init__(self):
        self.at = 0

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
    first = feed_of(Counted())
    iterator = first.start_epoch()
    next(iterator)
    assert first.position() == {"loader": {"at": 1}}
    assert list(feed_of(Counted(), 1).resume(first.position())) == [2, 3, 4]


@pytest.mark.parametrize(("saved", "now"), [(Counted, loader), (loader, Counted), (loader, LOADERS["own generator"])])
def test_a_loader_of_another_kind_than_the_saved_one_is_refused(saved, now):
    first = feed_of(saved())
    first.start_epoch()
    with pytest.raises(CheckpointError, match="the checkpoint is of"):
        feed_of(now(), 1).resume(first.position())


def test_a_loader_that_has_become_shorter_is_refused():
    first = feed_of(iter_of(4))
    first.start_epoch()
    with pytest.raises(CheckpointError, match="has less than the 3 batches"):
        feed_of(iter_of(2), 3).resume(first.position())


def iter_of(count):
    return itertools.repeat(torch.zeros(1), count)


@pytest.mark.parametrize("make", [*LOADERS.values(), *LISTS.values(), Counted], ids=[*LOADERS, *LISTS, "state"])
def test_nothing_is_said_of_loaders_that_are_resumed_exactly(make):
    assert why_inexact(make()) is None


@pytest.mark.parametrize("make", FOREIGN.values(), ids=FOREIGN)
def test_of_others_it_is_said_why(make):
    why = why_inexact(make())
    assert "read again" in why and "StatefulDataLoader" in why


def test_a_subclass_of_a_known_sampler_may_do_anything():
    class Other(SequentialSampler):
        pass

    assert "a Other, has no state_dict" in why_inexact(loader(sampler=Other(Rows())))
