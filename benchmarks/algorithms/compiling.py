"""What `compile` gains on the CPU: `python benchmarks/algorithms/compiling.py [ROUNDS]`.

Two trainings of each net that differ in `compile` alone take turns, in blocks of steps. Told are the medians of a
step's time and of the ratio of neighbouring blocks, in CPU time and on the clock, how long compiling takes, and after
how many steps that is paid.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import nets
import torch
from sides import STEPS, make_batches
from torch import nn
from torch.nn import functional as F

from engine_core import Trainer
from surgery_plugin import Compile

WARM = 3


def trainer_of(net: Callable[..., nn.Module], batches: Any, *algorithms: Any) -> Trainer:
    """Return a Trainer of a net."""
    torch.manual_seed(0)
    model = net()
    return Trainer(
        model,
        batches,
        loss_fn=F.cross_entropy,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9),
        algorithms=algorithms,
        device="cpu",
        seed=1,
        progress_bar=False,
    )


def block(trainer: Trainer) -> tuple[float, float]:
    """Return the CPU seconds and the seconds on the clock of a block of steps."""
    cpu, clock = time.process_time(), time.perf_counter()
    trainer.fit(f"{STEPS}ba")
    return time.process_time() - cpu, time.perf_counter() - clock


def measure(net: Callable[..., nn.Module], rounds: int) -> str:
    """Return the figures of a net, as a row of a table."""
    batches = make_batches(net)
    plain, compiled = trainer_of(net, batches), trainer_of(net, batches, Compile())
    compiling = -block(plain)[1] + block(compiled)[1]
    for trainer in (plain, compiled) * WARM:
        block(trainer)
    pairs = [(block(plain), block(compiled)) for _ in range(rounds)]
    cells = [net.__name__]
    for clock in (0, 1):
        of_plain, of_compiled = ([pair[side][clock] for pair in pairs] for side in (0, 1))
        ratios = [two / one for one, two in zip(of_plain, of_compiled, strict=True)]
        quarters = statistics.quantiles(ratios, n=4)
        steps = [statistics.median(times) / STEPS * 1e3 for times in (of_plain, of_compiled)]
        cells.append(f"{steps[0]:.1f} | {steps[1]:.1f} | {quarters[1]:.2f} ({quarters[0]:.2f} to {quarters[2]:.2f})")
    saved = (steps[0] - steps[1]) / 1e3
    cells.append(f"{compiling:.0f} s | " + (f"{compiling / saved:,.0f}" if saved > 0 else "never"))
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    torch.set_num_threads(1)
    print("| net | CPU ms plain | compiled | ratio | ms plain | compiled | ratio | compiling | paid after steps |")
    print("|---" * 9 + "|")
    for net in (nets.resnet, nets.transformer):
        print(measure(net, int(sys.argv[1]) if len(sys.argv) > 1 else 20), flush=True)
