"""What the engine adds to a training step, against the hand-written loop in the same process.

    python benchmarks/step.py [--rounds 60]

A tiny MLP (32-32-10, batch 16, SGD, one thread). Bare loop and trainers take turns in short rounds, each timed in
process CPU time; the ratio is the median over the rounds, so that a machine whose speed drifts does not matter.
Exits with 1 where a goal is missed.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from engine_core import Algorithm, AlgorithmMetadata, Callback, Engine, Event, Logger, State, Trainer

STEPS = 100
DATA = [(torch.randn(16, 32), torch.randint(10, (16,)))] * 1_000_000
LOSS = torch.nn.CrossEntropyLoss()
PAIRS = [("before_forward", "after_forward"), ("before_loss", "after_loss"), ("before_backward", "after_backward")]


def model() -> torch.nn.Module:
    """Return the MLP."""
    return torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))


def bare() -> Callable[[], None]:
    """Return the hand-written loop over `STEPS` steps."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    batches = iter(DATA)

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
    """Return a callback with a method for each event that does nothing."""
    return type("NoOpCallback", (Callback,), dict.fromkeys(events, lambda self, state, logger: None))()


def trainer(plugins: int, over: int = 1) -> Callable[[], None]:
    """Return a trainer's `fit` over `STEPS` steps, with so many no-op algorithms and callbacks over so many pairs."""
    net = model()
    pairs = [PAIRS[i % over] for i in range(plugins)]
    made = Trainer(
        net,
        DATA,
        max_duration=f"{len(DATA)}ba",
        loss_fn=LOSS,
        optimizers=torch.optim.SGD(net.parameters(), lr=0.01),
        algorithms=[no_op_algorithm(pair) for pair in pairs],
        callbacks=[no_op_callback(pair) for pair in pairs],
        device="cpu",
        progress_bar=False,
    )
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


def interleaved(runs: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Return the CPU seconds of each run in each round, the runs taking turns."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    with no_collection():
        for _ in range(rounds):
            for name, run in runs.items():
                started = time.process_time()
                run()
                times[name].append(time.process_time() - started)
    return times


def per_event_us(algorithms: int, callbacks: int, calls: int = 20_000) -> float:
    """Return the microseconds of one event with so many listeners, the best of several tries."""
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


def import_cpu_s(statement: str, tries: int = 9) -> float:
    """Return the CPU seconds of a new Python with `statement`, the median over several."""
    times = []
    for _ in range(tries):
        code = f"import resource\n{statement}\nu = resource.getrusage(resource.RUSAGE_SELF)\nprint(u.ru_utime + u.ru_stime)"
        times.append(float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout))
    return statistics.median(times)


def main() -> int:
    """Measure, print a row for each goal, and return the number of goals missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    times = interleaved({"bare": bare(), "none": trainer(0), "ten": trainer(10), "spread": trainer(10, over=3)}, rounds)
    us = {name: statistics.median(values) / STEPS * 1e6 for name, values in times.items()}

    def ratio(name: str) -> float:
        return statistics.median(a / b for a, b in zip(times[name], times["bare"], strict=True))

    nobody, one_algorithm, one_callback = per_event_us(0, 0), per_event_us(1, 0), per_event_us(0, 1)
    rows = [
        (f"step without plugins / bare ({us['none']:.1f} / {us['bare']:.1f} us)", ratio("none"), 1.10),
        (f"the same, 10 algorithms and 10 callbacks at one pair of events ({us['ten']:.1f} us)", ratio("ten"), 1.25),
        (f"the same, spread over three pairs of events ({us['spread']:.1f} us)", ratio("spread"), 1.25),
        ("event that nobody listens to, us", nobody, 0.30),
        ("each further matching algorithm, us", (per_event_us(11, 0) - one_algorithm) / 10, 0.35),
        ("each further callback, us", (per_event_us(0, 11) - one_callback) / 10, 0.50),
        ("import engine_core, CPU s", import_cpu_s("import engine_core") - import_cpu_s(""), 0.15),
        ("import engine_core.engine, CPU s (no goal)", import_cpu_s("import engine_core.engine") - import_cpu_s(""), None),
    ]
    missed = 0
    for what, value, goal in rows:
        ok = goal is None or value <= goal
        missed += not ok
        print(f"{value:8.3f}  {'' if goal is None else f'goal {goal:.2f}':9}  {'ok  ' if ok else 'MISS'}  {what}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
