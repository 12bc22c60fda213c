"""Measure what a Selective Backprop step costs beyond its ideal, and exit with 1 if a goal is missed.

The ideal is a bare forward without gradients on the whole batch plus a plain step on a kept half. All kinds of step
are interleaved in one process, on one thread, in CPU time of the process:

    python benchmarks/selective_backprop.py [--rounds 60]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable

ROWS, KEEP = 64, 0.5
GOALS = {"selective / ideal": 1.03, "(draw + index) / step": 0.01}

# glibc's malloc hands freed activations back to the kernel, which distorts conv nets by a third.
MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": "2000000000",
    "MALLOC_TRIM_THRESHOLD_": "4000000000",
    "MALLOC_TOP_PAD_": "500000000",
}
if __name__ == "__main__" and any(os.environ.get(name) != value for name, value in MALLOC.items()):
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **MALLOC})

import torch
from torch import nn
from torch.nn import functional as F

from engine_core import Engine, Event, Logger, State
from engine_core.batch import take_rows
from sb_plugin import SelectiveBackprop
from sb_plugin.select import draw_rows


class Block(nn.Module):
    """Two convolutions around a shortcut."""

    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, out, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(out)
        self.short = nn.Identity() if stride == 1 and width == out else nn.Conv2d(width, out, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the activations of the block."""
        hidden = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(hidden)) + self.short(x))


def small_resnet() -> nn.Module:
    """Return a ResNet-14 for 32x32 images."""
    widths = [(16, 16, 1), (16, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1)]
    stem = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*stem, *(Block(*w) for w in widths), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def make_steps() -> dict[str, Callable[[], object]]:
    """Return the kinds of step to compare."""
    model = small_resnet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images, labels = torch.randn(ROWS, 3, 32, 32), torch.randint(0, 10, (ROWS,))
    half = images[: ROWS // 2].clone(), labels[: ROWS // 2].clone()
    algorithm = SelectiveBackprop(start=0, end=1, keep=KEEP, scale_factor=1, interrupt=0)
    state = State(model=model, algorithms=[algorithm], loss_fn=F.cross_entropy, seed=1)
    engine = Engine(state, Logger())
    engine.run_event(Event.INIT)

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    def ideal() -> None:
        with torch.no_grad():
            model(images)
        step(*half)

    def selective() -> None:
        state.batch = (images, labels)
        engine.run_event(Event.AFTER_DATALOADER)
        step(*state.batch)

    generator, losses = torch.Generator(), torch.rand(ROWS)

    def draw_and_index() -> None:
        take_rows((images, labels), ROWS, draw_rows(losses, ROWS // 2, KEEP, generator))

    return {
        "vanilla step": lambda: step(images, labels),
        "ideal step": ideal,
        "selective step": selective,
        "draw + index": draw_and_index,
    }


def measure(steps: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median CPU seconds of each kind, taken in turns whose order rotates."""
    names = list(steps)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(-3, rounds):
        for place in range(len(names)):
            name = names[(turn + place) % len(names)]
            start = time.process_time()
            steps[name]()
            if turn >= 0:
                seconds[name].append(time.process_time() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def main() -> int:
    """Print the table and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    cost = measure(make_steps(), parser.parse_args().rounds)
    for name, seconds in cost.items():
        print(f"{name:24} {1e3 * seconds:9.3f} ms {seconds / cost['vanilla step']:8.3f} of vanilla")
    ratios = {
        "selective / ideal": cost["selective step"] / cost["ideal step"],
        "(draw + index) / step": cost["draw + index"] / cost["vanilla step"],
    }
    missed = 0
    for name, goal in GOALS.items():
        missed += ratios[name] > goal
        print(f"{name:24} {ratios[name]:9.4f}    goal {goal} {'missed' if ratios[name] > goal else 'met'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
