"""Executors of Dask: of processes on this machine, and of a cluster."""

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager

from distributed import Client


@contextmanager
def here() -> Iterator[Executor]:
    """Start two workers, and end them with the study."""
    with Client(n_workers=2, threads_per_worker=1) as client:
        yield client.get_executor()


@contextmanager
def cluster() -> Iterator[Executor]:
    """Use the workers of the scheduler whose address is in DASK_SCHEDULER_ADDRESS."""
    with Client() as client:
        yield client.get_executor()
