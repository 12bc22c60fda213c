"""Jobs of Slurm as an executor, through submitit; where there is no Slurm, each job is a process of this machine."""

from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import submitit


class Jobs(Executor):
    """Submits each run as a job, and waits for it in a thread."""

    def __init__(self) -> None:
        self._slurm = submitit.AutoExecutor("submitit")  # the folder of the jobs' own files
        self._slurm.update_parameters(timeout_min=240, cpus_per_task=4, gpus_per_node=1)
        self._threads, self._jobs = ThreadPoolExecutor(100), list[submitit.Job[Any]]()

    def submit(self, function: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        self._jobs.append(self._slurm.submit(function, *args, **options))
        return self._threads.submit(self._jobs[-1].result)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002
        for job in self._jobs:
            if not job.done():  # after Ctrl-C
                job.cancel()
        self._threads.shutdown(wait, cancel_futures=cancel_futures)
