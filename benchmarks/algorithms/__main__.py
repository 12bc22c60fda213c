"""What an algorithm costs beyond its mathematics written into a loop by hand; exits with 1 if a goal is missed.

    python benchmarks/algorithms [NAME ...] [--rounds N]

For each algorithm the same steps run four times: a bare loop with the mathematics written into it (for surgery: with a
model made of hand-written layers), `Trainer(algorithms=[X])`, and both without the algorithm. They take turns in blocks
of 4 steps in one process, on one thread, in CPU time of the process, and are rebuilt a few times in between. Both sides
draw the same random numbers and have to end with the same weights, or the run fails: all bit-equal, except the row
whose rounding is torch's.

    hand, trainer   the median of a step with the algorithm
    ratio           trainer / hand, the median over the blocks; the goal is 1.02
    best            trainer / hand of the shortest blocks, with the least noise
    engine          the same as `ratio` without the algorithm: the engine's part of it
    own             (trainer - hand) less the same without the algorithm: the algorithm's part of a step
    weights         the largest difference between the weights of the two sides

Noise raises `ratio` or `best`, a real cost both: a goal is missed if both are above it. On a busy machine, run a single
NAME with more rounds.
"""

from __future__ import annotations

import argparse
import os
import sys

# glibc's malloc hands freed activations back to the kernel, which distorts conv nets by a third.
SETTINGS = {
    "MALLOC_MMAP_THRESHOLD_": "2000000000",
    "MALLOC_TRIM_THRESHOLD_": "4000000000",
    "MALLOC_TOP_PAD_": "500000000",
    "OMP_NUM_THREADS": "1",
}
if __name__ == "__main__" and any(os.environ.get(name) != value for name, value in SETTINGS.items()):
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **SETTINGS})

import augmentation
import inactive
import labels
import optim
import surgery
import torch
from sides import Case, compare

GOAL = 1.02
CASES: dict[str, Case] = {**labels.CASES, **augmentation.CASES, **surgery.CASES, **optim.CASES, **inactive.CASES}


def main() -> int:
    """Print a row for each algorithm and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CASES)}; default: all")
    parser.add_argument("--rounds", type=int, default=32)
    given = parser.parse_args()
    if unknown := set(given.names) - set(CASES):
        parser.error(f"there is no {min(unknown)!r}, only {', '.join(CASES)}")
    torch.set_num_threads(1)
    print(f"{'':21}{'hand':>8} {'trainer':>9} {'ratio':>7} {'best':>6} {'engine':>7} {'own':>8}  weights")
    missed = 0
    for name in given.names or CASES:
        torch.manual_seed(0)
        r = compare(CASES[name], given.rounds)
        miss = min(r.ratio, r.best) > GOAL
        missed += miss
        apart = f"{r.apart:.1e}" if r.apart else "equal"
        print(
            f"{name:21}{r.hand_ms:5.2f} ms {r.trainer_ms:6.2f} ms {r.ratio:7.4f} {r.best:6.3f} {r.engine:7.4f} "
            f"{r.own_us:5.0f} us  {apart:8} {'MISS' if miss else 'ok'}",
            flush=True,
        )
    if imported := inactive.imported_unnamed():
        missed += 1
        print(f"MISS: a Trainer that names no algorithm imports {', '.join(imported)}")
    else:
        print("ok: a Trainer that names no algorithm imports no plugin")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
