"""`state.peek_batch`: the first batch of a fit, looked at without a trace, whatever loads it."""

import random

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler

from engine_core import Engine, Logger, State, Trainer
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.errors import ArgumentError, EngineError
from engine_core.randomness import GlobalGenerators
from engine_core_author import ThreadRanks

from .parts import at, batches, net, rows, same, trainer

EXAMPLES, BATCH = 22, 6
PERSISTENT = {"num_workers": 2, "persistent_workers": True}


class Noisy(Dataset):
    """Rows to which each read adds noise from torch's and Python's global generators."""

    inputs, targets = rows(EXAMPLES)

    def __len__(self):
        return EXAMPLES

    def __getitem__(self, index):
        return self.inputs[index] + torch.rand(4) + random.random(), self.targets[index]


class Stream(IterableDataset):
    """Rows that begin where the latest pass ended; knows where."""

    def __init__(self):
        self.inputs, self.targets = rows(3 * EXAMPLES)
        self.box = [0]  # changed in place, as no look at attributes tells

    def __iter__(self):
        for _ in range(EXAMPLES):
            place, self.box[0] = self.box[0], self.box[0] + 1
            yield self.inputs[place], self.targets[place]

    def state_dict(self):
        return {"box": self.box}

    def load_state_dict(self, state):
        self.box = state["box"]


class Batches:
    """Batches in an order from a generator of its own; counts its epochs, which give other batches."""

    def __init__(self):
        self.generator, self.epochs = torch.Generator().manual_seed(3), 0
        self.inputs, self.targets = rows(EXAMPLES)

    def __iter__(self):
        self.epochs += 1
        for index in torch.randperm(EXAMPLES, generator=self.generator).split(BATCH):
            yield self.inputs[index] * self.epochs, self.targets[index]


def sampled():
    dataset = Noisy()
    sampler = RandomSampler(dataset, generator=torch.Generator().manual_seed(8))
    return DataLoader(dataset, BATCH, sampler=sampler)


def stateful(dataset, **settings):
    loaders = pytest.importorskip("torchdata.stateful_dataloader", reason="needs the extra 'torchdata'")
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return loaders.StatefulDataLoader(dataset(), BATCH, **settings)


LOADERS = {
    "list": lambda: batches(8, 8, 5),
    "own": Batches,
    "in order": lambda: DataLoader(Noisy(), BATCH),
    "shuffled": lambda: DataLoader(Noisy(), BATCH, shuffle=True),
    "shuffled by workers": lambda: DataLoader(Noisy(), BATCH, shuffle=True, num_workers=2),
    "shuffled by workers that persist": lambda: DataLoader(Noisy(), BATCH, shuffle=True, **PERSISTENT),
    "sampler with a generator": sampled,
    "stream with state": lambda: DataLoader(Stream(), BATCH),
    "torchdata": lambda: stateful(Noisy, shuffle=True),
    "torchdata with workers": lambda: stateful(Noisy, shuffle=True, num_workers=2),
    "torchdata, a stream": lambda: stateful(Stream),
}
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 calls it


def run(data, *events, peeked=None, callbacks=(), model=None, **settings):
    """Return a trainer that peeks at these events, and the batches on which it trains."""
    seen = []
    peeks = [] if peeked is None else peeked
    peeking = [at(event, lambda state: peeks.append(state.peek_batch())) for event in events]
    noting = at("after_dataloader", lambda state: seen.append([item.clone() for item in state.batch]))
    given = {"max_duration": "2ep", "seed": 4, "callbacks": [noting, *peeking, *callbacks], **settings}
    return trainer(data, net(dropout=0.3) if model is None else model, **given), seen


def left(made):
    """Return all that a run leaves behind: weights, and the generators."""
    return made.state.model.state_dict(), GlobalGenerators.capture(torch.device("cpu")).to_state()


def fitted(data, *events, fits=("2ep",), **settings):
    made, seen = run(data, *events, **settings)
    with made:
        for each in fits:
            made.fit(each)
        return left(made), seen


@pytest.mark.parametrize("name", LOADERS)
def test_a_run_that_peeks_is_the_run_that_does_not_and_sees_its_first_batch(name):
    peeked = []
    plain, seen = fitted(LOADERS[name]())
    other, seen_too = fitted(LOADERS[name](), "init", "fit_start", peeked=peeked)
    assert same(other, plain)
    assert same(seen_too, seen)
    assert len(peeked) == 2
    assert all(same(list(batch), seen[0]) for batch in peeked)


@pytest.mark.filterwarnings("ignore:fit.*goes past")
@pytest.mark.parametrize("fits", [("2ba", "5ba"), ("1ep", "1ep"), ("4ba", "4ba")], ids="-".join)
@pytest.mark.parametrize("name", [name for name in LOADERS if name != "stream with state"])
def test_each_fit_peeks_at_its_own_first_batch_in_mid_epoch_too(name, fits):
    if name == "own" and fits[0] != "1ep":
        fits = ("1ep", "1ep", "1ep")
    peeked = []
    plain, seen = fitted(LOADERS[name](), fits=fits, max_duration="9ep")
    other, seen_too = fitted(LOADERS[name](), "fit_start", fits=fits, peeked=peeked, max_duration="9ep")
    assert same(other, plain)
    assert same(seen_too, seen)
    first = {"2ba": 2, "4ba": 4, "1ep": len(seen) // len(fits)}[fits[0]]
    # What is drawn for them is that of other workers, or of another iterator.
    items = slice(1, 2) if "persist" in name or "torchdata" in name else slice(2)
    assert same(list(peeked[1])[items], seen[first][items])


@pytest.mark.parametrize("at_batch", [3, 4])
@pytest.mark.parametrize("name", [name for name in LOADERS if "stream" not in name and name != "own"])
def test_a_resumed_run_that_peeks_is_the_one_that_does_not_and_sees_the_batch_that_comes_next(name, at_batch, tmp_path):
    saver = CheckpointSaver(tmp_path, interval="1ba", keep_last=None)
    _, whole = fitted(LOADERS[name](), callbacks=[saver])
    given = {"load_path": next(tmp_path.glob(f"*-ba{at_batch}")), "fits": (None,)}
    plain, seen = fitted(LOADERS[name](), **given)
    peeked = []
    other, seen_too = fitted(LOADERS[name](), "fit_start", peeked=peeked, **given)
    assert same(other, plain)
    assert same(seen_too, seen)
    assert len(seen) == len(whole) - at_batch
    items = slice(1, 2) if at_batch == 4 and ("persist" in name or "torchdata" in name) else slice(2)  # as above
    assert same(list(peeked[0])[items], seen[0][items])


def test_at_init_of_a_resumed_run_nothing_is_loaded_and_it_is_the_first_batch_of_all(tmp_path):
    saver = CheckpointSaver(tmp_path, interval="1ba")
    _, seen = fitted(LOADERS["shuffled"](), callbacks=[saver], fits=("3ba",))
    peeked = []
    made, _ = run(LOADERS["shuffled"](), "init", peeked=peeked, load_path=tmp_path)
    made.close()
    assert same(list(peeked[0]), seen[0])


def test_what_is_done_to_a_peeked_batch_does_not_reach_the_loader():
    data = batches(8, 8)
    with trainer(data, callbacks=[at("fit_start", lambda state: state.peek_batch()[0].zero_())]) as made:
        made.fit()
    assert same(data, batches(8, 8))


class Drawing(Batches):
    """Draws for each batch, and can't say where it is."""

    def __iter__(self):
        for inputs, targets in super().__iter__():
            yield inputs + torch.rand(1), targets


def held():
    """Return a loader that reads an iterator that it was given."""
    made = Batches()
    made.source = iter(batches(8, 8))
    return made


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (lambda: iter(batches(8)), r"train_dataloader is a list_iterator, which gives each item once.*=\[\*batches\]"),
        (lambda: (batch for batch in batches(8)), "train_dataloader is a generator, which gives"),
        (held, "source is a list_iterator, which gives each item once"),
    ],
)
def test_what_can_be_read_once_is_refused_with_the_line_to_write(data, said):
    with pytest.raises(ArgumentError, match=said):
        run(data(), "init")


def test_without_a_loader_it_says_what_to_give():
    with pytest.raises(ArgumentError, match=r"no loader to look into: give Trainer\(train_dataloader=...\)"):
        Trainer(net(), device="cpu", progress_bar=False, callbacks=[at("init", State.peek_batch)])


def test_a_batch_in_mid_epoch_for_which_a_loader_without_state_draws_is_refused():
    made, _ = run(Drawing(), callbacks=[at("fit_start", lambda state: state.timestamp.batch and state.peek_batch())])
    with made:
        made.fit("2ba")
        with pytest.raises(ArgumentError, match=r"can't be given twice: a Drawing has no state_dict.*give it state_di"):
            made.fit("2ba")


def test_at_other_events_and_in_a_loop_of_ones_own_it_says_what_to_do():
    said = r"peek_batch can be called at INIT and FIT_START, in a loop that sets state\.loop\.peek"
    with trainer(callbacks=[at("batch_start", State.peek_batch)]) as made, pytest.raises(EngineError, match=said):
        made.fit()
    assert made.state.loop.peek is None
    with pytest.raises(EngineError, match=said):
        State().peek_batch()
    state = State(callbacks=[at("init", lambda state: state.extra.update(found=state.peek_batch()))])
    state.loop.peek = lambda: 3
    with Engine(state, Logger()) as engine:
        engine.run_event("init")
    assert state.extra == {"found": 3}


def test_weights_are_awaited_where_they_are_loaded_after_init_or_nothing_is_trained(tmp_path):
    awaited = []
    noting = at("init", lambda state: awaited.append(state.loop.awaits_weights))
    saver = CheckpointSaver(tmp_path, interval="1ba")
    fitted(batches(8), callbacks=[noting, saver], fits=("1ba",))
    for settings in ({"load_path": tmp_path}, {"load_path": tmp_path, "load_strict": False}):
        run(batches(8), callbacks=[noting], **settings)[0].close()
    Trainer(net(), device="cpu", progress_bar=False, callbacks=[noting]).close()
    assert awaited == [False, True, False, True]


@pytest.mark.parametrize("name", ["list", "shuffled"])
@pytest.mark.parametrize("fits", [("2ep",), ("2ba", "4ba")], ids="-".join)
def test_ranks_that_peek_see_their_own_rows_and_go_on_as_if_they_had_not(name, fits):
    def program(ranks, *events):
        peeked, given = [], {"max_duration": "9ep", "parallel": ranks}
        made, seen = run(LOADERS[name](), *events, peeked=peeked, **given)
        with made:
            for each in fits:
                made.fit(each)
            return made.state.model.state_dict(), seen, peeked

    plain = ThreadRanks.run(program)
    peeking = ThreadRanks.run(lambda ranks: program(ranks, "init", "fit_start"))
    assert same([each[:2] for each in peeking], [each[:2] for each in plain])
    for _, seen, peeked in peeking:
        assert same(list(peeked[0])[1], seen[0][1])
        assert same(list(peeked[-1])[1], seen[2 if len(fits) > 1 else 0][1])
