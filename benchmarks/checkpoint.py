"""What saving and loading a run costs: a model of 25 million parameters with Adam, against torch.save and torch.load.

    python benchmarks/checkpoint.py [--rounds 5]

Both sides write the same tensors and fsync; they take turns going first. Medians of wall-clock seconds are printed,
since most of the time is spent waiting for the disk; in memory (TMPDIR=/dev/shm) there is no noise from the disk. A
stall is how much longer the saving step takes, while a thread writes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from engine_core import Callback, Logger, State, Trainer
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.checkpoint import read_content, resolve, write_content

WIDTH, LAYERS, STEPS = 2048, 6, 4


class Watch(Callback):
    """Records how long the end of each step took, where savers save."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.since_s = 0.0

    def batch_end(self, state: State, logger: Logger) -> None:
        """Start the clock."""
        self.since_s = time.perf_counter()

    def batch_checkpoint(self, state: State, logger: Logger) -> None:
        """Stop the clock; this callback comes after the saver."""
        self.seconds.append(time.perf_counter() - self.since_s)


def made(folder: Path, *callbacks: Callback, interval: str = "2ba", **settings: Any) -> Trainer:
    """Return a trainer of a net of 25 million parameters that saves every second step."""
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    return Trainer(
        model,
        [(torch.randn(1, WIDTH), torch.randn(1, WIDTH))] * STEPS,
        max_duration="1ep",
        loss_fn=torch.nn.MSELoss(),
        optimizers=torch.optim.Adam(model.parameters()),
        callbacks=[CheckpointSaver(folder, interval, keep_last=1), *callbacks],
        device="cpu",
        progress_bar=False,
        **settings,
    )


def seconds_of(call: Callable[[], object]) -> float:
    """Return how long a call takes, the second time: the first one also waits for the system to allocate memory."""
    call()
    began_s = time.perf_counter()
    call()
    return time.perf_counter() - began_s


def saved_by_torch(trainer: Trainer, path: Path) -> None:
    """Write weights and optimizer as a hand-written loop does, and make sure that they are on disk."""
    state: Any = trainer.state
    with path.open("wb") as file:
        torch.save({"model": state.model.state_dict(), "optimizer": state.optimizers[0].state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())


def measure(folder: Path, *, is_turned_round: bool) -> dict[str, float]:
    """Run once, and return seconds and megabytes by what they measure."""
    watch, store, by_torch = Watch(), folder / "saved", folder / "run.pt"
    with made(store, watch) as trainer:
        trainer.fit()
        content = read_content(resolve(store))
        calls: list[tuple[str, Callable[[], object]]] = [
            ("save", lambda: write_content(folder / "again", content)),
            ("by torch.save", lambda: saved_by_torch(trainer, by_torch)),
            ("load", lambda: read_content(folder / "again")),
            ("by torch.load", lambda: torch.load(by_torch, weights_only=True)),
        ]
        if is_turned_round:
            calls = [calls[place] for place in (1, 0, 3, 2)]
        found = {name: seconds_of(call) for name, call in calls}
    found["stall of the step that saves"] = watch.seconds[1] - watch.seconds[0]
    found["MB"] = sum(path.stat().st_size for path in (folder / "again").iterdir()) / 1e6
    found["MB by torch.save"] = by_torch.stat().st_size / 1e6
    return found


def main() -> None:
    """Parse the command line, and print medians over the rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds: list[dict[str, float]] = []
    for number in range(parser.parse_args().rounds):
        with tempfile.TemporaryDirectory() as folder:
            rounds.append(measure(Path(folder), is_turned_round=bool(number % 2)))
    for name in rounds[0]:
        values = sorted(found[name] for found in rounds)
        print(f"{name:30}{statistics.median(values):9.3f}   from {values[0]:.3f} to {values[-1]:.3f}")


if __name__ == "__main__":
    main()
