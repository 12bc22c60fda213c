"""Which rows each rank trains on, for loaders of all kinds: a part of the program `evaluating`."""

import random
import sys
import warnings
from pathlib import Path

import torch
from torch import nn
from torch.utils import data as torch_data
from torch.utils.data.distributed import DistributedSampler

from engine_core import Callback
from engine_core.parallel import DDP

sys.path.insert(0, str(Path(__file__).parent))
from trainers import fit

ROWS = 23


class Rows(torch_data.Dataset):
    """Examples that know their number; it counts what is read."""

    def __init__(self, size=ROWS):
        self.size, self.read = size, []

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        self.read.append(index)
        return torch.full((2,), index / self.size), torch.tensor(index % 3), torch.tensor(index)


class Noisy(Rows):
    """Examples with inputs that are drawn in the worker."""

    def __getitem__(self, index):
        return torch.rand(2), *super().__getitem__(index)[1:]


class Shuffling:
    """Draws batches of indices from Python's global generator whenever it begins; it has no length."""

    def __iter__(self):
        order = random.sample(range(ROWS), ROWS)
        return (order[begin : begin + 6] for begin in range(0, ROWS, 6))


class Draws(Callback):
    """Draws from the global generators, on each rank another number of times."""

    def batch_end(self, state, logger):
        torch.rand(state.rank + 1), random.random()


class Seen(Callback):
    """Keeps the numbers of the rows of each batch, and none of a placeholder's."""

    def __init__(self):
        self.rows, self.samples, self.inputs = [], [], []

    def batch_start(self, state, logger):
        self.rows.append([] if state.is_placeholder else state.batch[2].tolist())
        self.inputs.append(state.batch[0].tolist())

    def batch_end(self, state, logger):
        self.samples.append(state.timestamp.sample)


def loader(dataset=None, batch_size=6, **more):
    return torch_data.DataLoader(Rows() if dataset is None else dataset, batch_size=batch_size, **more)


def cases(ranks):
    """Return the Trainer's arguments of each case."""
    weighted = torch_data.WeightedRandomSampler([1.0] * 5 + [3.0] * 18, 20)
    own, distributed = torch.Generator().manual_seed(5), DistributedSampler(Rows(), ranks.size, ranks.rank)
    local = DDP(data="local") if ranks.size > 1 else None
    ragged = [torch_data.default_collate([Rows()[i] for i in part]) for part in ([1, 2, 3, 4, 5], [6], [7, 8], [9] * 7)]
    numbers = [torch_data.default_collate([Rows()[i + 10 * ranks.rank]]) for i in range(4 - ranks.rank)]
    return {
        "shuffled": {"train_dataloader": loader(shuffle=True)},
        "shuffled by its own generator": {"train_dataloader": loader(shuffle=True, generator=own)},
        "without the last": {"train_dataloader": loader(shuffle=True, drop_last=True)},
        "weighted": {"train_dataloader": loader(sampler=weighted)},
        "workers that persist": {"train_dataloader": loader(shuffle=True, num_workers=2, persistent_workers=True)},
        "workers that draw": {"train_dataloader": loader(Noisy(), num_workers=2)},
        "fewer rows than ranks": {"train_dataloader": loader(Rows(7), batch_size=2, shuffle=True)},
        "a list": {"train_dataloader": ragged},
        "batches of a sampler's own": {"train_dataloader": torch_data.DataLoader(Rows(), batch_sampler=Shuffling())},
        "by samples": {"train_dataloader": loader(shuffle=True), "max_duration": "30sp"},
        "local": {"train_dataloader": numbers, "parallel": local},
        "a distributed sampler": {"train_dataloader": loader(sampler=distributed, batch_size=2), "parallel": local},
    }


def seen(arguments):
    """Return the rows of each batch, and what the loader's dataset has read, in this process."""
    torch.manual_seed(1)
    watch, arguments = Seen(), dict(arguments)
    given = arguments.pop("train_dataloader")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = fit(nn.Linear(2, 3), given, **{"callbacks": [watch, Draws()], "seed": 7, **arguments})
    return {
        "rows": watch.rows,
        "inputs": watch.inputs[0],
        "samples": watch.samples,
        "read": getattr(getattr(given, "dataset", None), "read", []),
        "clock": list(trainer.state.timestamp)[:3],
        "warnings": [str(warning.message) for warning in caught],
    }
