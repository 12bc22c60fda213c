"""What the old run trained: a net, its data, and a callback that ends the first attempt."""

import os

import torch

from engine_core import Callback


def net():
    return torch.nn.Linear(4, 3)


def loader(batches=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(8, 4, generator=generator), torch.randint(3, (8,), generator=generator)) for _ in range(batches)
    ]


class Crash(Callback):
    def batch_end(self, state, logger):
        if os.environ.get("CRASH") and state.timestamp.batch == 9:
            raise ZeroDivisionError("on purpose")
