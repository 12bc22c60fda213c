"""A checkpoint of several processes, for tests: their parts, and a folder that they have written."""

import threading

import torch

from engine_core.checkpoint import Checkpoint, TensorSlice, slice_rows, write_content
from engine_core.ranks import Ranks

MODEL = {
    "weight": torch.randn(5, 4),
    "half": torch.randn(3).bfloat16(),
    "few": torch.randn(2, 3),
    "count": torch.tensor(3),
    "none": torch.empty(0, 2),
}
TENSORS = {
    "loss.weight": torch.randn(3),
    "average.weight": torch.randn(5, 4),
    "optimizers.0.exp_avg": torch.randn(5, 4),
    "optimizers.0.step": torch.tensor(7.0),
}
AVERAGE = {"algorithm": "EMA", "registered": "ema"}
STATE = {"average": {"weight": {"$": "tensor", "name": "average.weight"}}, "clock": {"epoch": 0, "batch": 3}}
CONTENT = Checkpoint(MODEL, STATE, TENSORS, {"seed": 7, "average": AVERAGE})


def rank_of(rank, size, **fields):
    """Return what several processes that need not be there look like to one of them."""
    ranks = Ranks()
    vars(ranks).update(rank=rank, size=size, **fields)
    return ranks


def part_of(content, rank, size):
    """Return what a rank holds: rows of each tensor, and columns of one."""
    model = {name: slice_rows(value, rank, size) for name, value in content.model.items()}
    if "weight" in content.model:
        columns = slice_rows(content.model["weight"].t(), rank, size)
        model["weight"] = TensorSlice(columns.tensor.t(), columns.offset[::-1], columns.shape[::-1])
    tensors = {name: slice_rows(value, rank, size) for name, value in content.tensors.items()}
    return Checkpoint(model, content.state if rank == 0 else {}, tensors, content.manifest)


def write(folder, content=CONTENT, size=4):
    """Write a sharded checkpoint, by a thread for each rank."""
    begun = folder.with_name(f".{folder.name}.begun.new")
    begun.mkdir(parents=True)
    parts = [(folder, part_of(content, rank, size), rank_of(rank, size), begun.name) for rank in range(size)]
    threads = [threading.Thread(target=write_content, args=part) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
