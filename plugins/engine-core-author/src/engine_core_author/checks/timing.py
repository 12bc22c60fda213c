"""How long a call takes: the least of many short measurements, which a busy machine disturbs least."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable


def least_seconds(call: Callable[[], object], calls: int, repeats: int) -> float:
    """Return the seconds of a call, the least of some repeats; a long call is repeated less."""
    clock, least_s = time.perf_counter, float("inf")
    collects = gc.isenabled()
    gc.disable()
    try:
        for _ in range(repeats):
            started_s = clock()
            call()
            once_s = clock() - started_s
            if once_s > 1e-3:
                least_s = min(least_s, once_s)
                continue
            started_s = clock()
            for _ in range(calls):
                call()
            least_s = min(least_s, (clock() - started_s) / calls)
    finally:
        if collects:
            gc.enable()
    return least_s


def patiently(measure: Callable[[], float], bound_s: float) -> float:
    """Measure again, up to four times, while it seems too slow: only that can be chance."""
    least_s = measure()
    for _ in range(4):
        if least_s <= bound_s:
            break
        least_s = min(least_s, measure())
    return least_s
