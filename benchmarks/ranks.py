"""What a run on two processes costs, against a hand-written DistributedDataParallel loop in the same processes.

    python benchmarks/ranks.py [CASE ...] [--rounds 30]

The program starts itself with torchrun, on two processes with one thread each, which talk over gloo. In each round the
Trainer and the other loop train on the same batches for a block of steps each, and take turns going first. A ratio is
the median over the rounds, of the CPU time of both processes together or of the wall-clock time of the slower one.
Exits with 1 if a goal is missed. Cases:

    tiny, small, large   a step of an MLP: of the size in step.py, and of 50 ms and 150 ms of CPU time on this machine,
                         which sets the number of rows
    selective            selective_backprop at keep 0.5, against its ideal: a forward without gradients on all rows,
                         then a plain step on the rows that are kept
    messages             the messages of the engine in a step; those of DistributedDataParallel are not counted
    evaluation           an evaluation, against the same on one process
    saving               a checkpoint of a model of 25 million parameters under FSDP, and the same tensors by
                         torch.distributed.checkpoint; only if it is asked for
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from engine_core import Algorithm, Callback, Event, Logger, State, Trainer
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.parallel import DDP, join
from engine_core.ranks import share

PROCESSES = 2
SETTINGS = {
    "MALLOC_MMAP_THRESHOLD_": "2000000000",
    "MALLOC_TRIM_THRESHOLD_": "4000000000",
    "MALLOC_TOP_PAD_": "500000000",
    "OMP_NUM_THREADS": "1",
}
"""Without these glibc's malloc hands freed activations back to the kernel, and the loop that frees later pays."""
BATCHES = 100_000
LOSS = torch.nn.CrossEntropyLoss()
Row = tuple[str, float, float | None]
"""What was measured, its value and its goal."""


class Task(NamedTuple):
    """An MLP with ten classes, its global batch, how many steps a block has, and how long a step should take."""

    rows: int
    width: int
    layers: int
    steps: int
    cpu_s: float | None = None
    goal: float | None = None

    def model(self) -> torch.nn.Sequential:
        """Return the MLP."""
        hidden = [m for _ in range(self.layers) for m in (torch.nn.Linear(self.width, self.width), torch.nn.ReLU())]
        return torch.nn.Sequential(*hidden, torch.nn.Linear(self.width, 10))

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a global batch, the same on all ranks."""
        torch.manual_seed(0)
        return torch.randn(self.rows, self.width), torch.randint(10, (self.rows,))

    def own_rows(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return this rank's part of the first rows of the global batch."""
        ranks = join(DDP(), "cpu")
        start, stop = share(rows, ranks.rank, ranks.size)
        inputs, targets = self.batch()
        return inputs[start:stop], targets[start:stop]

    def fitted(self) -> Task:
        """Return the task with as many rows as take the time that a step should take."""
        task = self
        if self.cpu_s is None:
            return task
        for _ in range(3):
            block = by_hand(task)
            _, (_, seconds), _ = compared(block, block, 6)
            per_step_s = join(DDP(), "cpu").first(seconds) / task.steps
            task = task._replace(rows=round(task.rows * self.cpu_s / per_step_s / 32) * 32)
        return task


TASKS = {
    "tiny": Task(16, 32, 1, 100),
    "small": Task(1024, 512, 2, 8, 0.05, 1.05),
    "large": Task(3072, 512, 2, 4, 0.15, 1.02),
}
SELECTIVE_GOAL = 1.05
SELECTIVE = "selective_backprop"


def by_trainer(task: Task, **settings: Any) -> Callable[[], object]:
    """Return a Trainer's block of steps."""
    trainer = made(task, [task.batch()] * BATCHES, **settings)
    return lambda: trainer.fit(f"{task.steps}ba")


def made(task: Task, data: Any, **settings: Any) -> Trainer:
    """Return a Trainer of the task that keeps quiet."""
    model = task.model()
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    settings = {"parallel": "ddp", "loss_fn": LOSS, "max_duration": f"{BATCHES}ba", **settings}
    return Trainer(model, data, optimizers=sgd, device="cpu", progress_bar=False, **settings)


def by_hand(task: Task, kept: int | None = None) -> Callable[[], None]:
    """Return a hand-written block of steps; with `kept` all rows are scored and the first ones trained on."""
    model = task.model()
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scored, _ = task.own_rows(task.rows)
    batches = iter([task.own_rows(kept or task.rows)] * BATCHES)

    def run() -> None:
        for _ in range(task.steps):
            inputs, targets = next(batches)
            if kept is not None:
                with torch.no_grad():
                    model(scored)
            optimizer.zero_grad()
            loss = LOSS(wrapped(inputs), targets)
            loss.backward()
            optimizer.step()

    return run


def compared(
    ours: Callable[[], object], theirs: Callable[[], object], rounds: int
) -> tuple[tuple[float, float], tuple[float, float], float]:
    """Return the median ratios of CPU and wall-clock time, both medians in CPU seconds, and the spread of the ratio.

    The spread is half the distance between the quartiles of the ratios in CPU time.
    """
    times = torch.zeros(rounds, 2, 2, dtype=torch.float64)  # round, run, (CPU, wall-clock)
    for turn in range(-2, rounds):
        for number in (0, 1) if turn % 2 else (1, 0):
            dist.barrier()
            began = time.process_time(), time.perf_counter()
            (ours, theirs)[number]()
            if turn >= 0:
                times[turn, number] = torch.tensor([time.process_time() - began[0], time.perf_counter() - began[1]])
    cpu, wall = times[:, :, 0].contiguous(), times[:, :, 1].contiguous()
    dist.all_reduce(cpu)
    dist.all_reduce(wall, dist.ReduceOp.MAX)
    ratios, wall_ratios = (kind[:, 0] / kind[:, 1] for kind in (cpu, wall))
    quarter, _, three_quarters = statistics.quantiles(ratios.tolist())
    medians = cpu.median(dim=0).values.tolist()
    return (
        (ratios.median().item(), wall_ratios.median().item()),
        (medians[0], medians[1]),
        (three_quarters - quarter) / 2,
    )


def comparison(
    what: str, ours: Callable[[], object], theirs: Callable[[], object], rounds: int, task: Task, goal: float | None
) -> list[Row]:
    """Return the rows of a comparison of blocks of steps."""
    (cpu, wall), used, spread = compared(ours, theirs, rounds)
    us, them = (f"{seconds / task.steps * 1e3:.2f}" for seconds in used)
    return [
        (f"{what} ({task.rows} rows; {us} / {them} ms CPU; quartiles +-{spread:.3f})", cpu, goal),
        (f"{what}, wall-clock", wall, None),
    ]


def step_rows(name: str, rounds: int) -> list[Row]:
    """Compare a plain step."""
    task = TASKS[name].fitted()
    return comparison(f"{name} step / by hand", by_trainer(task), by_hand(task), rounds, task, task.goal)


def selective_rows(rounds: int) -> list[Row]:
    """Compare a selective step with its ideal."""
    task = TASKS["large"].fitted()
    ours, ideal = by_trainer(task, algorithms=[always_selective()]), by_hand(task, task.rows // 2)
    return comparison("selective step / ideal", ours, ideal, rounds, task, SELECTIVE_GOAL)


def always_selective() -> Algorithm:
    """Return Selective Backprop that keeps half of the rows in each step."""
    from sb_plugin import SelectiveBackprop  # noqa: PLC0415  the other cases do without

    return SelectiveBackprop(start=0, end=1, keep=0.5, scale_factor=1, interrupt=0)


class Messages:
    """Counts what goes over torch.distributed's functions; DistributedDataParallel has its own way."""

    NAMES = (
        *("all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "all_to_all"),
        *("all_to_all_single", "barrier", "batch_isend_irecv", "broadcast", "broadcast_object_list"),
        *("gather", "irecv", "isend", "recv", "reduce", "scatter", "send"),
    )

    def __init__(self) -> None:
        self._sent: list[tuple[int, str]] = []
        self._starts: list[int] = []
        self._originals = {name: getattr(dist, name) for name in self.NAMES}

    def __enter__(self) -> Messages:
        for name, communicate in self._originals.items():
            setattr(dist, name, self._counting(communicate))
        return self

    def __exit__(self, *exception: object) -> None:
        for name, communicate in self._originals.items():
            setattr(dist, name, communicate)

    def _counting(self, communicate: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **more: Any) -> Any:
            tensors = [value for value in (*given, *more.values()) if isinstance(value, torch.Tensor)]
            self._sent.append((sum(t.nbytes for t in tensors), "".join({t.device.type for t in tensors})))
            return communicate(*given, **more)

        return call

    def marking(self, batches: list[Any]) -> Any:
        """Return a loader of the batches that notes where each step begins."""
        messages = self

        class Marked(list[Any]):
            def __iter__(self) -> Iterator[Any]:
                for batch in super().__iter__():
                    messages._starts.append(len(messages._sent))
                    yield batch

        return Marked(batches)

    def of_steps(self) -> dict[str, Any]:
        """Return the most messages in a step, the bytes of the longest one, and the devices that they were on.

        The first step is left out: in it the ranks also compare their settings.
        """
        steps = [self._sent[begin:end] for begin, end in itertools.pairwise(self._starts[1:])]
        sent = [message for step in steps for message in step]
        return {
            "messages": max(len(step) for step in steps),
            "bytes": max((nbytes for nbytes, _ in sent), default=0),
            "devices": sorted({device for _, device in sent}),
        }


def listener(*events: str) -> Callback:
    """Return a callback that listens at some events."""
    return type("Listener", (Callback,), dict.fromkeys(events, lambda self, state, logger: None))()


def messages_of_runs() -> dict[str, dict[str, Any]]:
    """Return the messages of a step in several runs."""
    task, found = TASKS["tiny"], {}
    with shared_folder() as folder:
        runs: dict[str, dict[str, Any]] = {
            "plain": {},
            "microbatches": {"microbatch_size": 3},
            "a dict of losses": {
                "loss_fn": lambda outputs, targets: {"a": LOSS(outputs, targets), "b": outputs.mean()}
            },
            "a saver": {"callbacks": [CheckpointSaver(folder, "1000ba")]},
            "a listener at after_train_batch": {"callbacks": [listener("after_train_batch")]},
            "a listener at batch_end": {"callbacks": [listener("batch_end")]},
            "a listener at each event": {"callbacks": [listener(*(event.value for event in Event))]},
            SELECTIVE: {"algorithms": [always_selective()]},
        }
        for name, settings in runs.items():
            messages = Messages()
            with made(task, messages.marking([task.batch()] * 8), **settings) as trainer, messages:
                trainer.fit("8ba")
            found[name] = messages.of_steps()
    return found


def message_rows() -> list[Row]:
    """Count the messages of a step; those of an algorithm, and the rows that it deals, have no goal."""
    rows: list[Row] = []
    for name, found in messages_of_runs().items():
        most, longest = (None, None) if name == SELECTIVE else (3, 1000)
        rows += [
            (f"messages a step, {name}", found["messages"], most),
            (f"bytes of the longest, {name}", found["bytes"], longest),
        ]
        assert found["devices"] == ["cpu"]
    return rows


def evaluation_rows(rounds: int) -> list[Row]:
    """Compare an evaluation with the same on rank 0 alone, while the other one waits."""
    task = TASKS["large"]
    batches = [task.batch()] * task.steps
    together, alone = made(task, batches), made(task, batches, parallel=None)
    single = (lambda: alone.eval(batches)) if dist.get_rank() == 0 else (lambda: None)
    (cpu, wall), (us, them), spread = compared(lambda: together.eval(batches), single, rounds)
    used = f"{us / task.steps * 1e3:.2f} / {them / task.steps * 1e3:.2f} ms CPU a batch; quartiles +-{spread:.3f}"
    return [(f"evaluation / on one process ({used})", cpu, None), ("evaluation, wall-clock", wall, None)]


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


def saving_rows() -> list[Row]:
    """Compare a sharded checkpoint with those of torch.distributed.checkpoint, which keeps no more than tensors."""
    import torch.distributed.checkpoint as dcp  # noqa: PLC0415  the other cases do without
    from torch.distributed.checkpoint.state_dict import get_state_dict  # noqa: PLC0415

    task, watch = Task(8, 2048, 6, 4), Watch()
    model = task.model()
    seconds: dict[str, float] = {}
    with shared_folder() as folder:
        trainer = Trainer(
            model,
            [task.batch()] * task.steps,
            max_duration=f"{task.steps}ba",
            loss_fn=LOSS,
            optimizers=torch.optim.Adam,
            callbacks=[CheckpointSaver(folder / "ours", "2ba", keep_last=1), watch],
            parallel="fsdp",
            device="cpu",
            progress_bar=False,
        )
        with trainer:
            trainer.fit("2ba")  # the first checkpoint also waits for the system to allocate memory
            trainer.fit("1ba")
            since_s = time.perf_counter()
            trainer.fit("1ba")
            trainer.close()
            seconds["ours, a step and until written"] = time.perf_counter() - since_s
        seconds["ours, stall"] = watch.seconds[3] - watch.seconds[2]
        weights, optimizer = get_state_dict(trainer.state.model, trainer.state.optimizers)
        content: Any = {"model": weights, "optimizer": optimizer}
        for at in (folder / "dcp-first", folder / "dcp"):
            since_s = time.perf_counter()
            dcp.save(content, checkpoint_id=at)
            seconds["DCP save"] = time.perf_counter() - since_s
        async_group: Any = dist.new_group(backend="gloo")
        for at in (folder / "async-first", folder / "async"):
            since_s = time.perf_counter()
            future: Any = dcp.async_save(content, checkpoint_id=at, process_group=async_group)
            seconds["DCP async_save, stall"] = time.perf_counter() - since_s
            future.result()
            seconds["DCP async_save, until written"] = time.perf_counter() - since_s
    return [(f"s, {what}", value, None) for what, value in seconds.items()]


@contextmanager
def shared_folder() -> Iterator[Path]:
    """Keep a folder, the same on all ranks, until all have left."""
    ranks = join(DDP(), "cpu")
    folder = Path(ranks.first(tempfile.mkdtemp() if ranks.rank == 0 else None))
    try:
        yield folder
    finally:
        dist.barrier()
        if ranks.rank == 0:
            shutil.rmtree(folder)


CASES: dict[str, Callable[[int], list[Row]]] = {
    **{name: partial(step_rows, name) for name in TASKS},
    "selective": selective_rows,
    "messages": lambda rounds: message_rows(),
    "evaluation": evaluation_rows,
    "saving": lambda rounds: saving_rows(),
}
ASKED = "saving"


def arguments(given: list[str]) -> argparse.Namespace:
    """Return the command line, parsed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--rounds", type=int, default=30)
    found = parser.parse_args(given)
    if unknown := {*found.cases} - {*CASES}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; the cases are {', '.join(CASES)}")
    found.cases = found.cases or [name for name in CASES if name != ASKED]
    return found


def measure(out: Path, given: list[str]) -> None:
    """Measure on this process and the others; rank 0 writes the rows."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    asked, ranks = arguments(given), join(DDP(), "cpu")
    rows = [row for name in asked.cases for row in CASES[name](asked.rounds)]
    if ranks.rank == 0:
        out.write_text(json.dumps(rows))


def main() -> int:
    """Start the processes, print a row for each figure, and return 1 if a goal is missed."""
    asked = arguments(sys.argv[1:])
    missed = False
    for case in asked.cases:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "rows.json"
            launcher = [
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--standalone",
                "--nproc-per-node",
                str(PROCESSES),
            ]
            command = [*launcher, __file__, str(out), case, "--rounds", str(asked.rounds)]
            subprocess.run(command, check=True, env={**os.environ, **SETTINGS})
            rows: list[Row] = json.loads(out.read_text())
        for what, value, goal in rows:
            miss = goal is not None and value > goal
            missed |= miss
            print(
                f"{value:8.3f}  {'' if goal is None else f'goal {goal:g}':9}  {'MISS' if miss else 'ok  '}  {what}",
                flush=True,
            )
    return int(missed)


if __name__ == "__main__":
    if "WORLD_SIZE" in os.environ:
        measure(Path(sys.argv[1]), sys.argv[2:])
    else:
        sys.exit(main())
