"""What audit mode costs: training steps with and without the `audit` callback, for a small and a larger net.

    python benchmarks/audit.py [--rounds 20]

One algorithm runs once a step and changes nothing. Runs with and without audit take turns in short rounds in the same
process, each timed in process CPU time with one thread; medians over the rounds are printed.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Sequence

import torch

from engine_core import Algorithm, AlgorithmMetadata, Event, Logger, State, Trainer
from engine_core.metadata import WRITABLE
from engine_core_author.audit import tensors_of
from engine_core_author.audit_callback import Audit

SETTINGS = {
    "without audit": None,
    "all fields": {},
    "every 100 batches": {"interval": "100ba"},
    "batch, outputs, loss": {"fields": ["batch", "outputs", "loss"]},
}
NETS = {"small": ((32, 32, 10), 16, 100), "larger": ((512, 1024, 1024, 10), 64, 2)}


class NoOp(Algorithm):
    """Runs once a step and does nothing."""

    metadata = AlgorithmMetadata(events=("after_loss",), writes=())

    def match(self, event: Event, state: State) -> bool:
        return True

    def apply(self, event: Event, state: State, logger: Logger) -> None:
        return None


def trainer(widths: Sequence[int], rows: int, audit: dict[str, object] | None) -> Trainer:
    """Return a trainer of an MLP with AdamW, with or without audit."""
    layers = [m for i, o in itertools.pairwise(widths) for m in (torch.nn.Linear(i, o), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers[:-1])
    batch = torch.randn(rows, widths[0]), torch.randint(widths[-1], (rows,))
    return Trainer(
        model,
        [batch] * 1_000_000,
        max_duration="1000000ba",
        loss_fn=torch.nn.CrossEntropyLoss(),
        optimizers=torch.optim.AdamW(model.parameters()),
        algorithms=[NoOp()],
        callbacks=[] if audit is None else [Audit(**audit)],  # type: ignore[arg-type]
        device="cpu",
        progress_bar=False,
    )


def step_ms(trainers: dict[str, Trainer], steps: int, rounds: int) -> dict[str, float]:
    """Return the CPU milliseconds of a step for each trainer, as medians over rounds in which they take turns."""
    times: dict[str, list[float]] = {name: [] for name in trainers}
    for made in trainers.values():
        made.fit("3ba")
    for _ in range(rounds):
        for name, made in trainers.items():
            started = time.process_time()
            made.fit(f"{steps}ba")
            times[name].append((time.process_time() - started) / steps * 1000)
    return {name: statistics.median(values) for name, values in times.items()}


def compared_mb(state: State) -> float:
    """Return how much tensor memory is compared with all fields, in megabytes."""
    optimizers = [list(optimizer.state.values()) for optimizer in state.optimizers]
    found = [tensors_of(getattr(state, field)) for field in WRITABLE if field != "optimizers"]
    tensors = [t for tensors in [*found, tensors_of(optimizers)] for t in tensors.values()]
    return sum(tensor.nbytes for tensor in tensors) / 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    for name, (widths, rows, steps) in NETS.items():
        trainers = {setting: trainer(widths, rows, audit) for setting, audit in SETTINGS.items()}
        measured = step_ms(trainers, steps, rounds)
        state = trainers["without audit"].state
        parameters = sum(p.numel() for p in state.model.parameters())  # type: ignore[union-attr]
        shape, compared = "-".join(map(str, widths)), compared_mb(state)
        print(f"{name}: MLP {shape}, {parameters:,} parameters, {compared:.1f} MB to compare")
        for setting, ms in measured.items():
            print(f"  {setting:20}  {ms:8.3f} ms a step, {ms - measured['without audit']:+8.3f} ms")


if __name__ == "__main__":
    main()
