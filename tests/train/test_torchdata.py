"""torchdata's StatefulDataLoader, with and without worker processes: resumed anywhere, the run is the same."""

from collections import Counter

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, RandomSampler, get_worker_info

from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.errors import CheckpointError

from .parts import Memory, at, net, rows, same, trainer
from .test_resume import Noise, all_of, checkpoints

stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="needs the extra 'torchdata'")
pytestmark = [
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata 0.11 calls it, with torch 2.13
    pytest.mark.filterwarnings("ignore:fit.. has nothing to do"),  # resumed at its end
]

EXAMPLES, BATCH, EPOCHS = 22, 6, 3


class Rows(Dataset):
    """Counts how often each of its rows is read, in its own process."""

    def __init__(self):
        self.inputs, self.targets = rows(EXAMPLES)
        self.reads = Counter()

    def __len__(self):
        return EXAMPLES

    def __getitem__(self, index):
        self.reads[index] += 1
        return self.inputs[index], self.targets[index]


class Stream(IterableDataset):
    """Rows one after the other, each worker its own; knows where it is."""

    def __init__(self):
        self.inputs, self.targets = rows(EXAMPLES)

    def __iter__(self):
        return Reader(self)

    def __len__(self):
        return EXAMPLES


class Reader:
    """One pass over a stream."""

    def __init__(self, stream):
        worker = get_worker_info()
        self.stream, self.step = stream, worker.num_workers if worker else 1
        self.next = worker.id if worker else 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.next >= EXAMPLES:
            raise StopIteration
        place, self.next = self.next, self.next + self.step
        return self.stream.inputs[place], self.stream.targets[place]

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


def with_own_generator(collates=False):
    generator = torch.Generator().manual_seed(8)

    def collate(examples):
        inputs, targets = torch.utils.data.default_collate(examples)
        return inputs + torch.rand(inputs.shape, generator=generator), targets

    given = {"collate_fn": collate} if collates else {}
    return {"dataset": Rows(), "shuffle": True, "generator": generator, **given}


def with_sampler(**given):
    dataset = Rows()
    return {"dataset": dataset, "sampler": RandomSampler(dataset, **given)}


WORKERS = {
    "no worker": {"num_workers": 0},
    "2 workers": {"num_workers": 2},
    "2 that persist": {"num_workers": 2, "persistent_workers": True},
}
DATA = {
    "shuffled": lambda: {"dataset": Rows(), "shuffle": True},
    "in order": lambda: {"dataset": Rows()},
    "own generator": with_own_generator,
    "torch's sampler": with_sampler,
    "with replacement": lambda: with_sampler(replacement=True, num_samples=EXAMPLES),
    "stream": lambda: {"dataset": Stream()},
}


def loader(data="shuffled", workers="no worker", **settings):
    with torch.random.fork_rng():
        torch.manual_seed(3)  # from which torchdata draws the seed of its own sampler
        return stateful.StatefulDataLoader(batch_size=BATCH, **DATA[data](), **WORKERS[workers], **settings)


def run(data, callbacks=(), **settings):
    """Return a trainer, what it logs, and the batches on which it trains."""
    memory, seen = Memory(), []
    noting = at("after_dataloader", lambda state: seen.append(state.batch[1].clone()))
    given = {"max_duration": f"{EPOCHS}ep", "algorithms": [Noise()], "loggers": memory, "seed": 4, **settings}
    return trainer(data, net(dropout=0.3), callbacks=[noting, *callbacks], **given), memory, seen


def fitted(data, callbacks=(), **settings):
    made, memory, seen = run(data, callbacks, **settings)
    with made:
        made.fit()
    return [*all_of(made), memory.metrics, seen]


def savers(folder):
    """Return two, which save after each batch, and between epochs."""
    return [CheckpointSaver(folder / interval, interval, keep_last=None) for interval in ("1ba", "1ep")]


def ends_alike(rest, whole):
    """Is this how the whole run ends, and what it logged and saw last?"""
    *state, logged, seen = rest
    *wholly, all_logged, all_seen = whole
    tails = logged == all_logged[len(all_logged) - len(logged) :], same(seen, all_seen[len(all_seen) - len(seen) :])
    return same(state, wholly) and all(tails)


@pytest.mark.parametrize("data", DATA)
def test_resumed_anywhere_it_is_the_same_run(data, tmp_path):
    whole = fitted(loader(data), savers(tmp_path))
    saved = [*checkpoints(tmp_path / "1ba"), *checkpoints(tmp_path / "1ep")]
    assert len(saved) == 4 * EPOCHS + 1 + EPOCHS
    for path in saved[::3]:  # of both savers, in an epoch, at its end and at the end of the run
        assert ends_alike(fitted(loader(data), load_path=path, seed=None), whole), path.name


@pytest.mark.full
@pytest.mark.parametrize("workers", ["2 workers", "2 that persist"])
@pytest.mark.parametrize("data", ["shuffled", "own generator", "torch's sampler", "stream"])
def test_with_workers_too_also_where_the_end_is_in_batches(data, workers, tmp_path):
    whole = fitted(loader(data, workers), savers(tmp_path), max_duration="12ba")
    # The first is resumed within an epoch, the second and the last two after a last batch.
    for name in ("1ba/ep0-ba2", "1ep/ep1-ba4", "1ba/ep1-ba6", "1ba/ep1-ba8", "1ep/ep2-ba8"):
        rest = fitted(loader(data, workers), load_path=tmp_path / name, max_duration="12ba", seed=None)
        assert ends_alike(rest, whole), name


@pytest.mark.parametrize("workers", WORKERS)
def test_a_fit_continues_in_the_next_epoch_after_one_that_ended_with_the_last_batch(workers):
    whole = fitted(loader("stream", workers), max_duration="12ba")
    made, memory, seen = run(loader("stream", workers), max_duration="12ba")
    with made:
        made.fit("4ba")
        made.fit()
    assert ends_alike([*all_of(made), memory.metrics, seen], whole)


def test_what_was_taken_is_not_read_again_and_what_workers_have_read_ahead_is_not_counted(tmp_path):
    fitted(loader(), savers(tmp_path / "one"))
    data = loader()
    fitted(data, load_path=tmp_path / "one" / "1ba" / "ep2-ba10", seed=None)
    assert sum(data.dataset.reads.values()) == EXAMPLES - 2 * BATCH
    data, again = (loader("in order", "2 workers", prefetch_factor=2) for _ in range(2))
    fitted(data, savers(tmp_path))
    *_, seen = fitted(again, load_path=tmp_path / "1ba" / "ep2-ba9", seed=None)
    assert same(torch.cat(seen), rows(EXAMPLES)[1][BATCH:])


def test_a_state_of_the_dataset_that_a_checkpoint_cannot_hold_is_named(tmp_path):
    class Keeping(Rows):
        def state_dict(self):
            return {"raw": b"bytes"}

        def load_state_dict(self, state):
            raise AssertionError

    made, _, _ = run(stateful.StatefulDataLoader(Keeping(), BATCH), [CheckpointSaver(tmp_path, on_error="stop")])
    with made, pytest.raises(CheckpointError, match=r"feed\.loader\.dataset_state\.raw' is a builtins\.bytes"):
        made.fit()
