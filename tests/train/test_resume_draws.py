"""A resumed run draws what the uninterrupted one drew, whoever holds the generator and wherever the run stopped."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from engine_core import Callback
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.randomness import is_generator, load_generator, state_of_generator
from engine_core.trainer.loaders import own_generators

from .parts import at, linear, net, rows, trainer

ROWS = 12
GENERATORS = {
    "torch": lambda: torch.Generator().manual_seed(3),
    "random": lambda: random.Random(3),
    "numpy": lambda: np.random.default_rng(3),
    "numpy, Mersenne Twister": lambda: np.random.Generator(np.random.MT19937(3)),
    "numpy, Philox": lambda: np.random.Generator(np.random.Philox(3)),
    "numpy, as it was": lambda: np.random.RandomState(3),
}


def number(generator):
    if isinstance(generator, torch.Generator):
        return float(torch.rand((), generator=generator, dtype=torch.float64))
    return float(generator.random() if hasattr(generator, "random") else generator.random_sample())


class Batched(Sampler):
    """A batch sampler that shuffles with a generator under a name of its own."""

    def __init__(self, draws):
        self._draws = draws

    def __len__(self):
        return 3

    def __iter__(self):
        order = sorted(range(ROWS), key=lambda place: number(self._draws))
        return (order[start : start + 4] for start in range(0, ROWS, 4))


class Order(Callback):
    """Writes down which rows each batch has, in training and in evaluations."""

    def __init__(self, seen):
        self.seen = seen

    def batch_start(self, state, logger):
        self.seen.append((state.timestamp.batch, state.batch[0][:, 0].tolist()))

    def eval_batch_start(self, state, logger):
        self.seen.append((state.dataloader_label, state.batch[0][:, 0].tolist()))


def pause(event, number):
    counted = iter(range(1, 1000))
    return at(event, lambda state: next(counted) == number and state.pause_training("as asked"))


def order(folder, make, *stops, **settings):
    """Return the batches of a run that each of these callbacks stops, and that the next one resumes."""
    seen = []
    for callbacks in [*([stop] for stop in stops), []]:
        torch.manual_seed(len(seen))
        given = {"max_duration": "3ep", "seed": 1, **settings, **make()}
        saver = CheckpointSaver(folder, "1ba")
        with trainer(model=linear(), callbacks=[Order(seen), *callbacks, saver], autoresume=True, **given) as run:
            run.fit()
    return seen


def loader(**settings):
    return DataLoader(TensorDataset(*rows(ROWS)), **settings)


def own():
    return GENERATORS["torch"]()


def of_one_rank():
    return DistributedSampler(range(ROWS), 1, 0)


LOADERS = {
    "shuffled": lambda: loader(batch_size=4, shuffle=True),
    "with its own generator": lambda: loader(batch_size=4, shuffle=True, generator=own()),
    "a sampler with one": lambda: loader(batch_size=4, sampler=RandomSampler(range(ROWS), generator=own())),
    "a batch sampler with one": lambda: loader(batch_sampler=Batched(own())),
    "a batch sampler with numpy's": lambda: loader(batch_sampler=Batched(GENERATORS["numpy"]())),
    "one rank's": lambda: loader(batch_size=4, sampler=of_one_rank()),
    "one rank's, in batches": lambda: loader(batch_sampler=BatchSampler(of_one_rank(), 4, False)),
    "with workers that persist": lambda: loader(batch_size=4, shuffle=True, num_workers=1, persistent_workers=True),
}


@pytest.mark.filterwarnings("ignore::engine_core.errors.CheckpointWarning")  # of samplers whose batches are read again
@pytest.mark.parametrize(
    ("name", "batch"),
    [*((name, 2) for name in LOADERS), *((name, batch) for name in [*LOADERS][:2] for batch in (3, 6))],
)
def test_the_rest_of_a_paused_run_has_the_same_batches(name, batch, tmp_path):
    def make():
        return {"data": LOADERS[name]()}

    whole = order(tmp_path / "whole", make)
    assert order(tmp_path / "parts", make, pause("batch_end", batch)) == whole
    assert len({tuple(batch) for _, batch in whole}) > 3  # each epoch has an order of its own


COUNTS = {"shuffled": 2, "with its own generator": 5, "with workers that persist": 5}


@pytest.mark.parametrize(("name", "count"), [*COUNTS.items(), ("a batch sampler with numpy's", 11)])
def test_an_evaluation_that_was_interrupted_is_repeated_as_it_began(name, count, tmp_path):
    def make():
        loaders = {"one": LOADERS[name](), "other": LOADERS[name]()}
        return {"data": LOADERS["shuffled"](), "eval_dataloader": loaders, "eval_interval": "2ba"}

    whole = order(tmp_path / "whole", make)
    parts = order(tmp_path / "parts", make, pause("eval_batch_end", count))
    begun = (count - 1) // 3 * 3  # three batches each
    evaluated = [[batch for label, batch in seen if isinstance(label, str)] for seen in (whole, parts)]
    assert evaluated[1][:count] == evaluated[0][:count]
    assert evaluated[1][count:] == evaluated[0][begun:]  # the loader that was cut, from its beginning
    assert [each for each in parts if isinstance(each[0], int)] == [each for each in whole if isinstance(each[0], int)]


class Positioned:
    """A loader that keeps its position itself, and begins where it is."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        while self.at < 3:
            self.at += 1
            yield rows(4, self.at)
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


@pytest.mark.parametrize("in_one_process", [True, False])
@pytest.mark.parametrize("count", [1, 3, 4])
def test_an_interrupted_evaluation_begins_a_loader_with_a_position_again(count, *, in_one_process, tmp_path):
    def made(seen, *callbacks):
        callbacks = (Order(seen), *callbacks, CheckpointSaver(tmp_path, "1ba"))
        given = {"eval_dataloader": Positioned(), "eval_interval": "1ba", "autoresume": True}
        return trainer([rows(4)] * 2, linear(), callbacks=callbacks, **given)

    seen = []
    with made(seen, pause("eval_batch_end", count)) as run:
        run.fit()
        if in_one_process:
            run.fit()
    with made(seen) as run:
        if not in_one_process:
            run.fit()
    evaluated = [batch for label, batch in seen if label == "eval"]
    whole = [rows(4, seed)[0][:, 0].tolist() for seed in (1, 2, 3)]
    assert evaluated == [*whole * (count // 4), *whole[: (count - 1) % 3 + 1], *whole * (2 - count // 4)]


@pytest.mark.parametrize(("interval", "times"), [("3ba", 3), ("2ba", 4), ("1ep", 2)])
def test_the_results_are_those_of_the_model_that_is_left(interval, times):
    @torch.no_grad()
    def average_at_the_end(state):
        """Change the weights where an epoch ends, as an average by epoch does."""
        for weight in state.model.parameters():
            weight.mul_(0.5)

    heard = []
    callbacks = [at("epoch_end", average_at_the_end), at("eval_end", heard.append)]
    evaluating = {"eval_dataloader": [rows(6)], "eval_interval": interval, "callbacks": callbacks}
    with trainer([rows(4)] * 3, net(), max_duration="2ep", **evaluating) as run:
        run.fit()
        told = dict(run.state.metrics)
        assert len(heard) == times  # one more than there are intervals, where the last one is of other weights
        assert run.eval() == told


@pytest.mark.parametrize("kind", GENERATORS)
def test_a_generator_continues_from_its_state(kind):
    generator, other = GENERATORS[kind](), GENERATORS[kind]()
    number(generator)
    state = state_of_generator(generator)
    expected = [number(generator) for _ in range(3)]
    load_generator(other, state)
    assert is_generator(other)
    assert [number(other) for _ in range(3)] == expected


def test_generators_are_found_wherever_a_loader_holds_them():
    made = [torch.Generator() for _ in range(4)]
    dataset = TensorDataset(*rows(4))
    dataset.noise = made[0]
    inner = DataLoader(dataset, sampler=RandomSampler(dataset, generator=made[1]), generator=made[2])
    found = own_generators(SimpleNamespace(loader=SimpleNamespace(loaders=[inner, inner]), mine=made[3], other=3))
    assert sorted(map(id, found)) == sorted(map(id, made))
    assert own_generators([1, 2]) == own_generators(SimpleNamespace(entropy=random.SystemRandom())) == []
