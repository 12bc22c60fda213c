"""A checkpoint of several processes, for tests: their shares, and a folder that they have written."""

import threading
from pathlib import Path
from typing import Any

import torch

from engine_core.checkpoint import Content, Piece, Share, Writers, cut, write_share

MODEL: dict[str, torch.Tensor] = {
    "weight": torch.randn(5, 4),
    "half": torch.randn(3).bfloat16(),
    "few": torch.randn(2, 3),
    "count": torch.tensor(3),
    "none": torch.empty(0, 2),
}
TENSORS: dict[str, torch.Tensor] = {
    "loss.weight": torch.randn(3),
    "algorithms.EMA.average.weight": torch.randn(5, 4),
    "optimizers.0.exp_avg": torch.randn(5, 4),
    "optimizers.0.step": torch.tensor(7.0),
}
AVERAGE = {"algorithm": "EMA", "registered": "ema", "tensors": {"weight": "algorithms.EMA.average.weight"}}
CONTENT = Content(MODEL, {"clock": {"epoch": 0, "batch": 3}}, TENSORS, {"seed": 7, "average": AVERAGE})


def share_of(content: Content, rank: int, size: int) -> Share:
    """Return what a rank holds: rows of each tensor, and columns of one."""
    model: dict[str, torch.Tensor | Piece] = {name: cut(value, rank, size) for name, value in content.model.items()}
    if "weight" in content.model:
        columns: Any = cut(content.model["weight"].t(), rank, size)
        model["weight"] = Piece(columns.tensor.t(), columns.offset[::-1], columns.shape[::-1])
    tensors = {name: cut(value, rank, size) for name, value in content.tensors.items()}
    return Share(model, content.state if rank == 0 else {}, tensors, content.manifest)


def write(folder: Path, content: Content = CONTENT, size: int = 4) -> None:
    """Write a sharded checkpoint, by a thread for each rank."""
    begun = folder.with_name(f".{folder.name}.begun.new")
    begun.mkdir(parents=True)
    shares = [(folder, share_of(content, rank, size), Writers(rank, size, begun.name)) for rank in range(size)]
    threads = [threading.Thread(target=write_share, args=share) for share in shares]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
