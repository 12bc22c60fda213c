"""What the steps of Selective Backprop cost; exits with 1 if a goal is missed.

    python benchmarks/selective_backprop [NET ...] [--processes N] [--rounds N] [--kinds KIND ...]
        [--device cuda]

Each net takes every kind of step once in each round, in a new random order, in one process, on one thread, in CPU time
of the process. A figure is the median over the rounds of the ratio of two steps of one round, averaged over several
processes, one after another. Figures with a goal come with their standard error, and with `by noise` if the goal is
within three standard errors, as so few processes leave the error itself uncertain.

    vanilla     a plain step on all rows, without an engine
    kept        a plain step on the first rows, without an engine: the minimum for training on that many rows
    ideal       a bare forward without gradients on all rows, then a plain step on the kept ones
    selective   selective_backprop as it is
    eval+bf16   bn="eval", precision="bf16"
    carried     scorer="carried"
    stale       scorer="stale", refresh=3: the mean of three steps, one of which scores
    reuse       reuse="on"
    uniform     selector="uniform"
    inactive    selective_backprop outside its interval
    recording   scorer="carried" before its interval, where it records the training losses
    drawing     drawing k of n rows, and taking them

All but the first three fire the events of a step through an Engine, which asks the algorithm at each. Nothing is
logged: with a logger a selective step takes some 0.05 ms more. Goals for one kind of scoring hold at keep 0.5.

On another device than the CPU the batch has 16 times the rows, a step is timed by the clock until the device is idle,
and there are no goals.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from itertools import chain

# glibc's malloc hands freed activations back to the kernel, which distorts conv nets by a third.
SETTINGS = {
    "MALLOC_MMAP_THRESHOLD_": "2000000000",
    "MALLOC_TRIM_THRESHOLD_": "4000000000",
    "MALLOC_TOP_PAD_": "500000000",
    "OMP_NUM_THREADS": "1",
}
if __name__ == "__main__" and any(os.environ.get(name) != value for name, value in SETTINGS.items()):
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **SETTINGS})

from nets import NETS
from ratios import ratio_of
from steps import KEEPS, KINDS, costs_of_steps

GOALS = [
    *((f"selective {keep}", f"ideal {keep}", 1.03, ("resnet", "mlp", "lm")) for keep in KEEPS),
    ("carried 0.5", "vanilla", 0.50, ("resnet", "lm")),
    ("reuse 0.5", "ideal 0.5", 0.92, ("lm",)),
    ("reuse 0.5", "ideal 0.5", 0.86, ("mlp",)),
    ("eval+bf16 0.5", "ideal 0.5", 0.80, ("resnet",)),
    ("inactive", "vanilla", 1.005, ("resnet", "mlp", "lm")),
    *((f"drawing {keep}", "vanilla", 0.01, ("resnet", "mlp", "lm")) for keep in KEEPS),
]


def main() -> int:
    """Print a table and the goals for each net, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="*", metavar="NET", help=f"of {', '.join(NETS)}; default: all")
    parser.add_argument("--processes", type=int, default=4, help="at least 2; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=10, help="in each process; default: %(default)s")
    parser.add_argument(
        "--kinds", nargs="+", metavar="KIND", default=[], help="like 'carried' or 'carried 0.5'; default: all"
    )
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    if given.rounds < 1:
        parser.error("--rounds has to be at least 1")
    if given.processes < 2:
        parser.error("--processes has to be at least 2: their differences give the error of a figure")
    if unknown := set(given.nets) - set(NETS):
        parser.error(f"there is no {min(unknown)!r}, only {', '.join(NETS)}")
    if unknown := set(given.kinds) - {*KINDS, *(kind.split()[0] for kind in KINDS)}:
        parser.error(f"there is no kind {min(unknown)!r}, only {', '.join(KINDS)}")
    missed = 0
    for name in given.nets or NETS:
        cost = costs_of_steps(name, given.processes, given.rounds, given.kinds, given.device)
        show(name, cost)
        for kind in given.kinds:
            if not any(kind in (made, made.split()[0]) for made in cost):
                print(f"{name} has no {kind!r} step: its BatchNorm declines reuse")
        for kind, base, goal, nets in GOALS if given.device == "cpu" else ():
            if name in nets and {kind, base} <= cost.keys():
                ratio, error = ratio_of(cost[kind], cost[base])
                missed += ratio > goal
                verdict = ("MISS" if ratio > goal else "ok") + (" by noise" if abs(ratio - goal) < 3 * error else "")
                print(f"{kind + ' / ' + base:28} {ratio:7.4f} +- {error:.4f}  goal {goal} {verdict}")
        print(flush=True)
    return int(missed > 0)


def show(name: str, cost: dict[str, list[list[float]]]) -> None:
    """Print what each kind of step costs as a share of a vanilla one, for each fraction kept."""
    share = {kind: ratio_of(seconds, cost["vanilla"])[0] for kind, seconds in cost.items()}
    others = "".join(f"; {kind} {share[kind]:.4f}" for kind in ("inactive", "recording") if kind in share)
    print(f"{name}: a vanilla step takes {1e3 * statistics.median(chain(*cost['vanilla'])):.1f} ms{others}")
    print(f"{'keep':12}" + "".join(f"{keep:>9}" for keep in KEEPS))
    kinds = dict.fromkeys(kind.split()[0] for kind in cost if " " in kind)
    for kind in kinds:
        shares = (share.get(f"{kind} {keep}") for keep in KEEPS)
        print(f"{kind:12}" + "".join(f"{'' if one is None else f'{one:.4f}':>9}" for one in shares))


if __name__ == "__main__":
    sys.exit(main())
