"""What `benchmarks/adapters.py` times of Hugging Face's Trainer: a tiny MLP with batches of 8."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers
from torch import nn
from torch.nn import functional as F

from engine_core_transformers import EngineTrainer

BATCH, FEATURES, CLASSES = 8, 16, 4
BOTH = [("label_smoothing", {"target_key": "labels"}), "ema"]
transformers.logging.set_verbosity_error()


class Net(nn.Module):
    """A tiny MLP that computes its own loss if it gets labels."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, CLASSES))

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        logits = self.layers(inputs)
        return {"logits": logits} if labels is None else {"loss": F.cross_entropy(logits, labels), "logits": logits}


class Timer(transformers.TrainerCallback):
    """Counts the CPU seconds of the steps, without what comes before and after them."""

    seconds = 0.0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.seconds -= time.process_time()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.seconds += time.process_time()


def train(kind: Callable[..., transformers.Trainer], steps: int, **given: Any) -> float:
    """Return the CPU seconds of the steps of a training."""
    model, timer = Net(), Timer()
    generator = torch.Generator().manual_seed(0)
    rows = [
        {"inputs": torch.randn(FEATURES, generator=generator), "labels": torch.tensor(n % CLASSES)} for n in range(2048)
    ]
    with tempfile.TemporaryDirectory() as folder:
        args = transformers.TrainingArguments(
            folder,
            max_steps=steps,
            per_device_train_batch_size=BATCH,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        optimizers = (torch.optim.SGD(model.parameters(), lr=0.01), None)
        trainer = kind(model, args, train_dataset=rows, optimizers=optimizers, callbacks=[timer], **given)
        trainer.remove_callback(transformers.trainer_callback.PrinterCallback)
        trainer.train()
    return timer.seconds


def runs() -> dict[str, Callable[[int], float]]:
    """Return what trains some steps, by name."""
    return {
        "bare": partial(train, transformers.Trainer),
        "adapter": partial(train, EngineTrainer),
        "label_smoothing+ema": partial(train, EngineTrainer, loss_fn=nn.CrossEntropyLoss(), algorithms=BOTH),
    }
