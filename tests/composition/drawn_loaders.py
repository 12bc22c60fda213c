"""Loaders with drawn settings, for the drawn runs: lists, streams, samplers of all kinds, noise, workers."""

import random

import numpy as np
import torch
from torch.utils import data as torch_data
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

BY_INDEX = {"list", "shuffled", "sampler", "batches"}
# Don't wait 5 s for each worker of an iterator in a cycle, which torch can't tell to end any more.
torch_data._utils.MP_STATUS_CHECK_INTERVAL = 0.1


class Rows(torch_data.Dataset):
    """The first rows of the digits; a noisy one draws for each, from the global generator or its own."""

    def __init__(self, noise, rows):
        self.rows, self.noise, self._own = rows, noise, np.random.default_rng(3)

    def __len__(self):
        return len(self.rows[0])

    def __getitem__(self, place):
        inputs, *others = (part[place] for part in self.rows)
        noise = {"global": lambda: float(torch.rand(())), "own": self._own.random}.get(self.noise or "")
        return inputs if noise is None else inputs + 0.1 * noise(), *others


class Stream(torch_data.IterableDataset):
    """The same rows, which can only be read in turn."""

    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return (self.rows[place] for place in range(len(self.rows)))


class Drawing(torch_data.Sampler):
    """A sampler with a generator of its own, of any library, under a name of its own."""

    def __init__(self, kind, length):
        self.length = length
        made = {"torch": torch.Generator().manual_seed, "numpy": np.random.RandomState, "python": random.Random}
        self._draws = made[kind](7)

    def __len__(self):
        return self.length

    def __iter__(self):
        if isinstance(self._draws, torch.Generator):
            return iter(torch.randperm(self.length, generator=self._draws).tolist())
        if isinstance(self._draws, random.Random):
            return iter(self._draws.sample(range(self.length), self.length))
        return iter(self._draws.permutation(self.length).tolist())


class Batched(torch_data.Sampler):
    """A batch sampler around another sampler."""

    def __init__(self, sampler, size):
        self.inner = sampler
        self.size = size

    def __len__(self):
        return 1 + (len(self.inner) - 1) // self.size

    def __iter__(self):
        places = list(self.inner)
        return (places[start : start + self.size] for start in range(0, len(places), self.size))


SAMPLERS = {
    "random": lambda rows: torch_data.RandomSampler(rows, generator=torch.Generator().manual_seed(4)),
    "replacement": lambda rows: torch_data.RandomSampler(rows, replacement=True),
    "subset": lambda rows: torch_data.SubsetRandomSampler(range(0, len(rows), 2)),
    "weighted": lambda rows: torch_data.WeightedRandomSampler([1.0] * len(rows), len(rows)),
    "distributed": lambda rows: DistributedSampler(rows, num_replicas=1, rank=0, seed=2),
    **{kind: lambda rows, kind=kind: Drawing(kind, len(rows)) for kind in ("torch", "numpy", "python")},
}


def drawn_loader(draw):
    """Return the settings of a loader, as JSON has them."""
    kind = draw.choice(["list", *["shuffled"] * 3, *["sampler"] * 2, "batches", "stream", "stateful"])
    workers = draw.choice([0, 0, 0, 0, 2]) if kind in ("shuffled", "sampler", "batches") else 0
    return {
        "kind": kind,
        "sampler": draw.choice(sorted(SAMPLERS)),
        "num_workers": workers,
        "persistent_workers": bool(workers) and draw.random() < 0.5,
        "generator": draw.random() < 0.5,
        "noise": draw.choice([None, None, "global", "own"]) if not workers else None,
    }


def loader_of(settings, parts, size, *, drop_last):
    """Return a loader of these rows."""
    rows = Rows(settings["noise"], parts)
    generator = torch.Generator().manual_seed(6) if settings["generator"] else None
    given = {name: settings[name] for name in ("num_workers", "persistent_workers")}
    given["generator"] = generator
    match settings["kind"]:
        case "list":
            return list(zip(*(part.split(size) for part in parts), strict=True))
        case "stream":
            return DataLoader(Stream(rows), size, drop_last=drop_last)
        case "stateful":
            return StatefulDataLoader(rows, size, shuffle=True, drop_last=drop_last, generator=generator)
        case "batches":
            return DataLoader(rows, batch_sampler=Batched(SAMPLERS[settings["sampler"]](rows), size), **given)
        case "sampler":
            return DataLoader(rows, size, sampler=SAMPLERS[settings["sampler"]](rows), drop_last=drop_last, **given)
    return DataLoader(rows, size, shuffle=True, drop_last=drop_last, **given)
