"""What the steps of Selective Backprop cost; exits with 1 if a goal is missed.

    python benchmarks/selective_backprop [NET ...] [--rounds N]

Each net takes all kinds of step in turns, in an order that rotates, in one process, on one thread, in CPU time of the
process; the figures are medians, as fractions of a vanilla step.

    vanilla     a plain step on all rows, without an engine
    ideal       a bare forward without gradients on all rows, then a plain step on the kept ones
    selective   selective_backprop as it is
    eval+bf16   bn="eval", precision="bf16"
    carried     scorer="carried"
    stale       scorer="stale", refresh=3: the mean of three steps, one of which scores
    reuse       reuse="on"
    uniform     selector="uniform"
    inactive    selective_backprop outside of its interval
    recording   scorer="carried" before its interval, where it records the losses that train
    drawing     drawing k of n rows, and taking them

All but the first two fire the events of a step through an Engine, where the algorithm is asked at each. Nothing is
logged: with a logger a selective step takes some 0.05 ms more. Goals for one kind of scoring hold at keep 0.5.
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

import torch
from nets import NETS
from steps import KEEPS, cost_of_steps

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
    parser.add_argument("--rounds", type=int, default=40)
    given = parser.parse_args()
    if unknown := set(given.nets) - set(NETS):
        parser.error(f"there is no {min(unknown)!r}, only {', '.join(NETS)}")
    torch.set_num_threads(1)
    missed = 0
    for name in given.nets or NETS:
        torch.manual_seed(0)
        cost = cost_of_steps(NETS[name](), given.rounds)
        show(name, cost)
        for kind, base, goal, nets in GOALS:
            if name in nets:
                ratio = cost[kind] / cost[base]
                missed += ratio > goal
                print(f"{kind + ' / ' + base:28} {ratio:7.4f}  goal {goal} {'MISS' if ratio > goal else 'ok'}")
        print(flush=True)
    return int(missed > 0)


def show(name: str, cost: dict[str, float]) -> None:
    """Print what each kind of step costs, of a vanilla one, for each fraction kept."""
    vanilla_s = cost["vanilla"]
    others = ", ".join(f"{kind} {cost[kind] / vanilla_s:.4f}" for kind in ("inactive", "recording"))
    print(f"{name}: a vanilla step takes {1e3 * vanilla_s:.1f} ms; {others}")
    print(f"{'keep':12}" + "".join(f"{keep:>9}" for keep in KEEPS))
    kinds = dict.fromkeys(kind.split()[0] for kind in cost if " " in kind)
    for kind in kinds:
        print(f"{kind:12}" + "".join(f"{cost[f'{kind} {keep}'] / vanilla_s:9.4f}" for keep in KEEPS))


if __name__ == "__main__":
    sys.exit(main())
