"""What a tiny study trains: a linear net on made-up points, and algorithms without a distribution of their own."""

import time

import torch
from torch.utils.data import DataLoader, TensorDataset

from engine_core import Algorithm, Event

__all__ = ["Accuracy", "Breaks", "Noise", "Slow", "make_loader"]


def make_loader(split, batch_size=8):
    rows = {"train": slice(0, 48), "val": slice(48, 80), "test": slice(80, 144)}[split]
    points = torch.randn(144, 4, generator=torch.Generator().manual_seed(1))
    labels = (points @ torch.tensor([1.0, -2.0, 0.5, 1.5]) > 0).long()
    return DataLoader(TensorDataset(points[rows], labels[rows]), batch_size, shuffle=split == "train")


class Accuracy:
    def __init__(self):
        self.reset()

    def reset(self):
        self.right = self.seen = 0

    def update(self, outputs, targets):
        self.right += int((outputs.argmax(1) == targets).sum())
        self.seen += len(targets)

    def compute(self):
        return self.right / self.seen


class Noise(Algorithm):
    """Adds noise to the inputs."""

    def __init__(self, scale=1.0):
        self.scale = scale

    def match(self, event, state):
        return event is Event.AFTER_DATALOADER

    def apply(self, event, state, logger):
        points = state.batch[0]
        draw = torch.randn(points.shape, generator=torch.Generator().manual_seed(state.timestamp.batch))
        state.batch = (points + self.scale * draw, *state.batch[1:])


class Breaks(Algorithm):
    """Raises in the second epoch of some seeds."""

    def __init__(self, seeds=(1,)):
        self.seeds = seeds

    def match(self, event, state):
        return event is Event.BATCH_START and state.seed in self.seeds and state.timestamp.epoch == 1

    def apply(self, event, state, logger):
        raise RuntimeError("it breaks here")


class Slow(Algorithm):
    """Takes its time."""

    def __init__(self, seconds=0.02):
        self.seconds = seconds

    def match(self, event, state):
        return event is Event.BATCH_END

    def apply(self, event, state, logger):
        time.sleep(self.seconds)
