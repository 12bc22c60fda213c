"""Runs with drawn settings, whole or resumed: `python resuming.py whole|resumed|again FOLDER DRAW...`.

For each draw it writes a JSON file with a digest of each part of the run's end, or with what the run raised.
"""

from __future__ import annotations

import functools
import hashlib
import json
import random
import sys
import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from conftest import ARGUMENTS, BATCHES, NAMES, digits_net
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

from engine_core import LoggerDestination, Trainer, hookimpl
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.errors import CheckpointWarning
from engine_core.registry import Registry

ROWS, PHASES = 20, ("whole", "resumed", "again")
FORMS: dict[str, list[dict[str, Any]]] = {
    "cutout": [{}, {"num_holes": 2, "length": 0.3}],
    "ema": [{"decay": 0.9}, {"decay": 0.5, "update_interval": "3ba"}],
    "layer_freezing": [{"start": 0.2, "level": 0.5}, {"start": 0.0, "level": 1.0}],
    "mixup": [{}, {"interpolate_loss": True}],
    "cutmix": [{}, {"interpolate_loss": True}],
    "progressive_resizing": [
        {"initial_scale": 0.75, "size_increment": 2},
        {"initial_scale": 0.75, "size_increment": 2, "mode": "crop"},
    ],
    "sam": [{}, {"interval": 3}],
    "selective_backprop": [
        {"start": 0, "end": 1, "scale_factor": 1, "interrupt": 0},
        {"start": 0.3, "end": 0.8, "scale_factor": 1, "interrupt": 2, "selector": "cdf", "floor": 0.2},
        {"start": 0.2, "end": 1, "scale_factor": 1, "interrupt": 0, "scorer": "carried", "index_key": 2},
        {"start": 0, "end": 1, "scale_factor": 1, "interrupt": 3, "scorer": "stale", "index_key": 2},
        {"start": 0, "end": 1, "interrupt": 0, "selector": "uniform", "multiple_of": 2},
    ],
    "stochastic_depth": [{}, {"drop_rate": 0.6, "drop_per": "batch"}],
    "swa": [{"start": 0.3}, {"start": 0.5, "update_interval": "2ba"}],
}
OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.005, momentum=0.5, centered=True),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
}
SCHEDULERS: dict[str, Any] = {
    "none": None,
    "cosine": (functools.partial(lr_scheduler.CosineAnnealingLR, T_max="1dur"), "1ba"),
    "multi step": (lambda o: lr_scheduler.MultiStepLR(o, [3, 7]), "1ba"),
    "exponential": (lambda o: lr_scheduler.ExponentialLR(o, 0.8), "1ep"),
    "in sequence": (
        lambda o: lr_scheduler.SequentialLR(
            o, [lr_scheduler.LinearLR(o, total_iters=4), lr_scheduler.ExponentialLR(o, 0.9)], [4]
        ),
        "2ba",
    ),
}


class Accuracy:
    """The share of the rows that the outputs classify correctly."""

    def __init__(self) -> None:
        self.reset()

    def update(self, outputs: Any, targets: Any) -> None:
        self.right += int((outputs.argmax(1) == targets).sum())
        self.rows += len(targets)

    def compute(self) -> float:
        return self.right / self.rows

    def reset(self) -> None:
        self.right = self.rows = 0


def torchmetrics_accuracy() -> Any:
    try:
        from torchmetrics.classification import MulticlassAccuracy  # noqa: PLC0415  it is not everywhere
    except ImportError:
        return Accuracy()
    return MulticlassAccuracy(10)


METRICS: dict[str, Any] = {
    "none": dict,
    "own": lambda: {"a": Accuracy()},
    "theirs": lambda: {"a": torchmetrics_accuracy()},
}


def settings_of(number: int) -> dict[str, Any]:
    """Return the settings of a draw, as JSON has them."""
    draw = random.Random(number)
    chosen = [] if number == 0 else [NAMES[number % len(NAMES)]]  # so that a few draws have each
    others = [name for name in NAMES if name not in chosen]
    chosen += draw.sample(others, draw.randrange(4) if chosen else 0)
    if {"ema", "swa"} <= set(chosen):  # they exclude each other
        chosen.remove(max("ema", "swa", key=chosen.index))
    return {
        "algorithms": [[name, draw.choice(FORMS.get(name, [ARGUMENTS.get(name, {})]))] for name in chosen],
        "precision": draw.choice(["fp32", "fp32", "amp_bf16"]),
        "microbatch_size": draw.choice([None, None, 3, 4]),
        "grad_clip_norm": draw.choice([None, 0.5]),
        "optimizer": draw.choice(sorted(OPTIMIZERS)),
        "scheduler": draw.choice(sorted(SCHEDULERS)),
        "metrics": draw.choice(sorted(METRICS)),
        "eval_interval": draw.choice(["1ep", "3ba", "2ep"]),
        "max_duration": draw.choice(["2ep", "7ba", "9ba"]),
        "batch_size": draw.choice([5, 7, 8]),
        "drop_last": draw.random() < 0.3,
        "num_workers": 1 if draw.random() < 0.1 else 0,
        "seed": draw.randrange(1000),
    }


class Journal(LoggerDestination):
    """Keeps all that is logged and a digest of each batch as it was loaded; both continue in a resumed run."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.batches: list[str] = []

    def log_metrics(self, metrics: Mapping[str, Any], step: int) -> None:
        self.lines.append(f"{step} {sorted((name, value) for name, value in metrics.items() if name[:5] != 'time/')}")

    def state_dict(self) -> dict[str, Any]:
        return {"lines": list(self.lines), "batches": list(self.batches)}

    def load_state_dict(self, state: Any) -> None:
        self.lines, self.batches = list(state["lines"]), list(state["batches"])


class Watch:
    """Shows each batch to a journal before any algorithm gets it."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    @hookimpl(wrapper=True)
    def after_dataloader(self, state: Any) -> Any:
        self._journal.batches.append(digest(state.batch))
        return (yield)


def digest(value: Any) -> str:
    found = hashlib.sha256()
    _add(value, found)
    return found.hexdigest()


def _add(value: Any, found: Any) -> None:
    """Add the bits of a tree of tensors and values."""
    if isinstance(value, torch.Tensor):
        found.update(f"{value.dtype}{tuple(value.shape)}".encode())
        found.update(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, Mapping):
        found.update(b"{")
        for key in value:
            found.update(repr(key).encode())
            if not str(key).endswith("_s"):  # seconds
                _add(value[key], found)
    elif isinstance(value, (list, tuple)):
        found.update(b"[")
        for item in value:
            _add(item, found)
        found.update(b"]")
    elif isinstance(value, np.ndarray):
        found.update(value.tobytes())
    else:
        found.update(repr(value).encode())


def trainer_of(settings: Mapping[str, Any], folder: Path, **begin: Any) -> tuple[Trainer, Journal]:
    layers = list(digits_net())
    layers.insert(-3, nn.Dropout(0.3))
    inputs, targets, ids = (torch.cat(parts)[:ROWS] for parts in zip(*BATCHES[:1], strict=True))
    journal = Journal()
    load = Registry.scan().load
    made = Trainer(
        nn.Sequential(*layers),
        DataLoader(
            TensorDataset(inputs, targets, ids),
            settings["batch_size"],
            shuffle=True,
            drop_last=settings["drop_last"],
            num_workers=settings["num_workers"],
        ),
        loss_fn=nn.CrossEntropyLoss(),
        optimizers=OPTIMIZERS[settings["optimizer"]],
        schedulers=SCHEDULERS[settings["scheduler"]] or (),
        metrics=METRICS[settings["metrics"]](),
        eval_dataloader=[tuple(part[:9] for part in BATCHES[-1])],
        algorithms=[load("algorithms", name)(**given) for name, given in settings["algorithms"]],
        callbacks=[CheckpointSaver(folder, "1ba", keep_last=None)],
        loggers=[journal],
        progress_bar=False,
        device="cpu",
        **{
            name: settings[name]
            for name in ("precision", "microbatch_size", "grad_clip_norm", "eval_interval", "max_duration")
        },
        **begin,
    )
    made.engine.host.register(Watch(journal))
    return made, journal


def parts_of(made: Any, journal: Journal) -> dict[str, Any]:
    """Return everything that a run has produced, each part as a digest or in readable form."""
    state = made.state
    return {
        "weights": digest(dict(state.model.state_dict())),
        "optimizers": digest([optimizer.state_dict() for optimizer in state.optimizers]),
        "schedulers": digest([scheduler.get_last_lr() for scheduler in state.schedulers]),
        "algorithms": [[type(a).__name__, digest(a.state_dict())] for a in state.algorithms],
        "metrics": repr(sorted(state.metrics.items())),
        "clock": repr(state.timestamp._replace(elapsed_s=0.0, elapsed_s_in_epoch=0.0)),
        "torch's generator": digest(torch.get_rng_state()),
        "Python's generator": digest(random.getstate()),
        "NumPy's generator": digest(np.random.get_state()),
        "batches": journal.batches,
        "logged": journal.lines,
    }


def point_of(folder: Path, draw: random.Random, later: int) -> Path:
    """Return a checkpoint of a run after which it has saved at least so many others."""
    saved = sorted(path for path in folder.iterdir() if path.is_dir())
    saved.sort(key=lambda path: tuple(int(part[2:]) for part in path.name.split("-")[::-1]))
    return draw.choice(saved[:-later])


def run(phase: str, number: int, folder: Path) -> dict[str, Any]:
    settings, draw = settings_of(number), random.Random(f"{phase} {number}")
    begin: dict[str, Any] = {"seed": settings["seed"]}
    if phase != "whole":
        place = PHASES.index(phase)
        begin = {"load_path": point_of(folder / PHASES[place - 1], draw, later=len(PHASES) - place)}
        for seed in (torch.manual_seed, random.seed, np.random.seed):
            seed(draw.randrange(10**6))
    made, journal = trainer_of(settings, folder / phase, **begin)
    with made:
        made.fit()
    return {"settings": settings, "from": str(begin.get("load_path")), "parts": parts_of(made, journal)}


def main(phase: str, root: str, *numbers: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("error", CheckpointWarning)
    for number in map(int, numbers):
        folder = Path(root) / str(number)
        folder.mkdir(exist_ok=True)
        try:
            result = run(phase, number, folder)
        except Exception:  # noqa: BLE001  the other draws are tried all the same
            result = {"error": f"{settings_of(number)}\n{traceback.format_exc()}"}
        (folder / f"{phase}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
