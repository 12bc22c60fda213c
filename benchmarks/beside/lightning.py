"""Steps of a tiny MLP in Lightning: as it is, with the adapter, and with algorithms."""

from __future__ import annotations

import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import lightning.pytorch as pl
import torch
from torch import nn
from torch.nn import functional as F

from engine_core_lightning import EngineCallback

BATCH = 8
MODEL = {"model": "net", "loss_fn": "loss"}


class Batches:
    """A loader that costs nothing: Lightning would take a list for several loaders."""

    def __init__(self, steps: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.batch = torch.randn(BATCH, 16, generator=generator), torch.randint(4, (BATCH,), generator=generator)
        self.steps = steps

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[Any]:
        return iter([self.batch] * self.steps)


class Mlp(pl.LightningModule):
    """A tiny MLP."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
        self.loss = F.cross_entropy
        self.began_s = self.took_s = 0.0

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.loss(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)

    def on_train_epoch_start(self) -> None:
        self.began_s = time.process_time()

    def on_train_epoch_end(self) -> None:
        self.took_s = time.process_time() - self.began_s


def runs() -> Mapping[str, Callable[[int], float]]:
    """Return what trains so many steps and returns their CPU seconds, by name."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")

    def run(make_callback: Callable[[], Any], steps: int) -> float:
        module = Mlp()
        trainer = pl.Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[make_callback()],
        )
        trainer.fit(module, Batches(steps))
        return module.took_s

    both = ["label_smoothing", "ema"]
    makers: dict[str, Callable[[], Any]] = {
        "bare": pl.Callback,
        "adapter": lambda: EngineCallback(**MODEL),
        "label_smoothing+ema": lambda: EngineCallback(both, **MODEL),
    }
    return {name: lambda steps, make=make: run(make, steps) for name, make in makers.items()}


if __name__ == "__main__":
    for name, run in runs().items():
        print(name, run(int(sys.argv[1]) if sys.argv[1:] else 300))
