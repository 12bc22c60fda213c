"""What the engine adds to a training step, against the hand-written loop in the same process.

    python benchmarks/step.py [--rounds 60] [--device cuda]

Two tiny MLPs (32-32-10 with batches of 16, 16-16-10 with batches of 8; SGD, one thread): the smaller one computes less
for each line of Python, like a machine that is faster at arithmetic than at Python. Bare loop and trainers take
turns in short rounds, each timed in process CPU time; the ratio is the median over the rounds, so a machine whose speed
drifts does not matter. Exits with 1 if a goal is missed.

On another device than the CPU a round is timed by the clock, from an idle device to an idle device. A third MLP
(2048-2048-10 with batches of 4,096) keeps the device busy. There are no goals there.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch

from engine_core import Algorithm, AlgorithmMetadata, Callback, Engine, Event, Logger, State, Trainer
from insight_plugin import Profiler

STEPS = 100
BATCHES = 1_000_000
LOSS = torch.nn.CrossEntropyLoss()
PAIRS = [("before_forward", "after_forward"), ("before_loss", "after_loss"), ("before_backward", "after_backward")]


class Shape(NamedTuple):
    """The shape of an MLP with ten classes: rows of a batch, and the width of inputs and hidden layer."""

    rows: int
    width: int
    device: str = "cpu"

    def __str__(self) -> str:
        return f"{self.width}-{self.width}-10, batch {self.rows}"

    def model(self) -> torch.nn.Module:
        """Return the MLP."""
        hidden, last = torch.nn.Linear(self.width, self.width), torch.nn.Linear(self.width, 10)
        return torch.nn.Sequential(hidden, torch.nn.ReLU(), last).to(self.device)

    def data(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return enough batches, all the same."""
        inputs, targets = torch.randn(self.rows, self.width), torch.randint(10, (self.rows,))
        return [(inputs.to(self.device), targets.to(self.device))] * BATCHES

    def time_s(self) -> float:
        """Return the CPU time of the process, or the time when another device has nothing left to do."""
        if self.device == "cpu":
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()


SHAPES = (Shape(16, 32), Shape(8, 16))
BUSY = Shape(4096, 2048)


def bare(shape: Shape) -> Callable[[], None]:
    """Return the hand-written loop over `STEPS` steps."""
    net = shape.model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    batches = iter(shape.data())

    def run() -> None:
        for _ in range(STEPS):
            inputs, targets = next(batches)
            optimizer.zero_grad()
            loss = LOSS(net(inputs), targets)
            loss.backward()
            optimizer.step()

    return run


def no_op_algorithm(events: tuple[str, ...]) -> Algorithm:
    """Return an algorithm that always matches its events and does nothing."""

    class NoOp(Algorithm):
        metadata = AlgorithmMetadata(events=events)

        def match(self, event: Event, state: State) -> bool:
            return True

        def apply(self, event: Event, state: State, logger: Logger) -> None:
            return None

    return NoOp()


def no_op_callback(events: tuple[str, ...]) -> Callback:
    """Return a callback with a method that does nothing for each event."""
    return type("NoOpCallback", (Callback,), dict.fromkeys(events, lambda self, state, logger: None))()


def trainer(stack: ExitStack, shape: Shape, plugins: int, over: int = 1, *more: Callback) -> Callable[[], None]:
    """Return a trainer's `fit` over `STEPS` steps, with `plugins` no-op algorithms and callbacks over `over` pairs.

    Args:
        stack: closes the trainer.
    """
    net = shape.model()
    pairs = [PAIRS[i % over] for i in range(plugins)]
    made = Trainer(
        net,
        shape.data(),
        max_duration=f"{BATCHES}ba",
        loss_fn=LOSS,
        optimizers=torch.optim.SGD(net.parameters(), lr=0.01),
        algorithms=[no_op_algorithm(pair) for pair in pairs],
        callbacks=[*(no_op_callback(pair) for pair in pairs), *more],
        device=shape.device,
        progress_bar=False,
    )
    stack.enter_context(made)
    return lambda: made.fit(f"{STEPS}ba")


@contextmanager
def no_collection() -> Iterator[None]:
    """Keep the garbage collector out of a measurement."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def interleaved(
    runs: dict[str, Callable[[], None]], rounds: int, time_s: Callable[[], float]
) -> dict[str, list[float]]:
    """Return the seconds of each run in each round, the runs taking turns."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    with no_collection():
        for _ in range(rounds):
            for name, run in runs.items():
                started = time_s()
                run()
                times[name].append(time_s() - started)
    return times


def per_event_us(algorithms: int, callbacks: int, calls: int = 20_000) -> float:
    """Return the microseconds of one event with these numbers of listeners, the best of several tries."""
    event = "batch_end"
    state = State(
        algorithms=[no_op_algorithm((event,)) for _ in range(algorithms)],
        callbacks=[no_op_callback((event,)) for _ in range(callbacks)],
    )
    with Engine(state, Logger()) as engine, no_collection():
        run, fired = engine.run_event, Event(event)
        run(fired)
        best = []
        for _ in range(9):
            started = time.process_time()
            for _ in range(calls):
                run(fired)
            best.append((time.process_time() - started) / calls * 1e6)
        return min(best)


def import_cpu_s(module: str, tries: int = 9) -> float:
    """Return the CPU seconds that importing a module adds to a new Python, from medians over several."""
    report = "import resource; used = resource.getrusage(resource.RUSAGE_SELF); print(used.ru_utime + used.ru_stime)"

    def median_s(code: str) -> float:
        runs = (subprocess.run([sys.executable, "-c", code], capture_output=True, check=True) for _ in range(tries))
        return statistics.median(float(run.stdout) for run in runs)

    return median_s(f"import {module}; {report}") - median_s(report)


def step_rows(shape: Shape, rounds: int) -> Iterator[tuple[str, float, float | None]]:
    """Yield what a step costs compared with the bare loop: what, ratio, goal."""
    with ExitStack() as stack:
        runs = {
            "bare": bare(shape),
            "none": trainer(stack, shape, 0),
            "pair": trainer(stack, shape, 10),
            "pairs": trainer(stack, shape, 10, 3),
            "timing": trainer(stack, shape, 0, 1, Profiler()),
        }
        times = interleaved(runs, rounds, shape.time_s)
    us = {name: statistics.median(values) / STEPS * 1e6 for name, values in times.items()}
    for name, what, goal in (
        ("none", "without plugins", 1.08),
        ("pair", "with 10 algorithms and 10 callbacks at one pair of events", 1.20),
        ("pairs", "with the same 20 spread over three pairs of events", 1.25),
        ("timing", "without plugins, with --timing", None),
    ):
        ratio = statistics.median(a / b for a, b in zip(times[name], times["bare"], strict=True))
        figures = f"{us[name]:.1f} / {us['bare']:.1f} us; {shape}"
        yield f"step {what} / bare ({figures})", ratio, goal if shape.device == "cpu" else None


def event_rows() -> Iterator[tuple[str, float, float | None]]:
    """Yield what events and imports cost: what, microseconds or seconds, goal."""
    yield "us an event without listeners", per_event_us(0, 0), 0.15
    yield "us each further matching algorithm", (per_event_us(11, 0) - per_event_us(1, 0)) / 10, 0.35
    yield "us each further callback", (per_event_us(0, 11) - per_event_us(0, 1)) / 10, 0.50
    yield "CPU s to import engine_core", import_cpu_s("engine_core"), 0.15
    yield "CPU s to import engine_core.engine", import_cpu_s("engine_core.engine"), None


def main() -> int:
    """Measure, print a row for each goal, and return 1 if one is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    torch.set_num_threads(1)
    missed = False
    shapes = SHAPES if given.device == "cpu" else (*SHAPES, BUSY)
    steps = (row for shape in shapes for row in step_rows(shape._replace(device=given.device), given.rounds))
    for what, value, goal in itertools.chain(steps, event_rows() if given.device == "cpu" else ()):
        miss = goal is not None and value > goal
        missed |= miss
        print(f"{value:8.3f}  {'' if goal is None else f'goal {goal:.2f}':9}  {'MISS' if miss else 'ok  '}  {what}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
