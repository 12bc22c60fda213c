"""What a loop with Accelerate costs: as its guide shows it, with the adapter, and with algorithms."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from engine_core_accelerate import EngineLoop

BATCH = 8


def runs() -> dict[str, Callable[[int], float]]:
    """Return functions that train for so many steps and return the CPU seconds of these."""
    torch.set_num_threads(1)
    return {
        "bare": _bare,
        "adapter": lambda steps: _adapter(steps, []),
        "label_smoothing+ema": lambda steps: _adapter(steps, ["label_smoothing", "ema"]),
    }


def _parts(steps: int) -> tuple[Accelerator, nn.Module, Any]:
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(BATCH * steps, 16), torch.randint(4, (BATCH * steps,)))
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    return Accelerator(cpu=True), model, torch.utils.data.DataLoader(data, batch_size=BATCH)


def _timed(batches: Iterator[Any], step: Callable[[Any], object]) -> float:
    """Train on all but the first batch, which makes what is made once."""
    step(next(batches))
    since = time.process_time()
    for batch in batches:
        step(batch)
    return time.process_time() - since


def _bare(steps: int) -> float:
    accelerator, made, loader = _parts(steps + 1)
    optimizer = torch.optim.SGD(made.parameters(), lr=0.01)
    model, optimizer, loader = accelerator.prepare(made, optimizer, loader)
    loss_fn = nn.CrossEntropyLoss()

    def step(batch: Any) -> None:
        optimizer.zero_grad()
        accelerator.backward(loss_fn(model(batch[0]), batch[1]))
        optimizer.step()

    return _timed(iter(loader), step)


def _adapter(steps: int, algorithms: list[str]) -> float:
    accelerator, made, loader = _parts(steps + 1)
    loop = EngineLoop(accelerator, algorithms=algorithms, loss_fn=nn.CrossEntropyLoss(), max_duration="1ep", seed=0)
    loop.init(made)
    optimizer = torch.optim.SGD(made.parameters(), lr=0.01)
    model, optimizer, loader = accelerator.prepare(made, optimizer, loader)

    def step(batch: Any) -> None:
        loop.gradients(batch)
        optimizer.step()

    with loop.fit(model, optimizer, loader):
        return _timed(loop.batches(loader), step)
