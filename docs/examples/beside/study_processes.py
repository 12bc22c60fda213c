"""Four processes of this machine, as an executor of the standard library: a start for one of your own."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor


def four() -> ProcessPoolExecutor:
    """Return the executor; each run trains with one thread."""
    os.environ["OMP_NUM_THREADS"] = "1"
    return ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("spawn"))
