"""Runs that the tests of the trackers cut and resume, and how to read what the trackers have of them.

As a program, `python tracker_runs.py`, it trains in forked processes that kill themselves: a job as JSON on each line
of its input, answered by the exit code. So what takes seconds to import is imported once.
"""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import torch
import torch._dynamo  # optimizers import it when they first step
from torch import nn

from engine_core import Algorithm, AlgorithmMetadata, Callback, LoggerDestination, Trainer
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.loggers import numbers

BATCHES = [(torch.full((4, 3), float(i % 5)), torch.full((4, 1), float(i))) for i in range(3)]
POINTS = [
    *(("batch_start", 0), ("batch_end", 1), ("batch_checkpoint", 2), ("batch_start", 2), ("after_loss", 3)),
    *(("epoch_end", 3), ("eval_start", 3), ("eval_end", 3), ("batch_start", 3), ("epoch_start", 6)),
    *(("batch_end", 8), ("eval_end", 9), ("fit_end", 9)),
]
"""Where runs are cut: an event, and the number of complete batches there."""
SOME_POINTS = POINTS[1::3]
"""Before a checkpoint, within a step, between the evaluation and its log, and near the end."""


class Listed(Algorithm):
    """Runs at two events and does nothing."""

    metadata = AlgorithmMetadata(events=("after_dataloader", "after_loss"))

    def match(self, event, state):
        return True

    def apply(self, event, state, logger):
        """Do nothing."""


class Other(Listed):
    """Another one."""


class Memory(LoggerDestination):
    """Keeps the numbers: name, step and value."""

    def __init__(self):
        self.values = []

    def log_metrics(self, metrics, step):
        self.values += [(name, step, float(value)) for name, value in numbers(metrics).items()]


class Cut(Callback):
    """Makes a call at an event once so many batches are complete."""

    def __init__(self, event, batch, call):
        def method(state, logger):
            if state.timestamp.batch >= batch:
                call(state)

        setattr(self, event, method)


class SendsAtOnce(Callback):
    """Lets a tracker send what waits at each batch and evaluation, so that it is ahead of the checkpoints."""

    def __init__(self, tracker):
        self._tracker = tracker

    def batch_end(self, state, logger):
        self._tracker.state_dict()

    eval_end = batch_start = batch_end


class Stopped(RuntimeError):  # noqa: N818  read as a word
    """What ends a run in these tests."""


def stop(state):
    raise Stopped


def trainer(loggers, folder, *cuts, **settings):
    """Return a trainer of 3 epochs of 3 batches, evaluated after each, which saves every 2 batches, if at all."""
    torch.manual_seed(1)
    saver = [] if folder is None else [CheckpointSaver(folder / "checkpoints", "2ba")]
    given = {
        "max_duration": "3ep",
        "loss_fn": nn.MSELoss(),
        "optimizers": lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        "eval_dataloader": BATCHES[:1],
        "algorithms": [Listed(), Other()],
        "device": "cpu",
        "seed": 1,
        "progress_bar": False,
        "autoresume": folder is not None,
        **settings,
    }
    return Trainer(nn.Linear(3, 1), BATCHES, callbacks=[*cuts, *saver], loggers=loggers, **given)


def fit(*given, **settings):
    """Train to the end, or until something raises."""
    with trainer(*given, **settings) as made:
        made.fit()


def expected():
    """Return what the uninterrupted run logs."""
    memory = Memory()
    fit(memory, None)
    return sorted(memory.values)


def same_values(found, wanted):
    """Are these the same values at the same steps, each as often, but for the digits that a float32 lacks?"""
    found, wanted = sorted(found), sorted(wanted)
    names = [value[:2] for value in found] == [value[:2] for value in wanted]
    return names and all(abs(a[2] - b[2]) <= 1e-6 * abs(b[2]) for a, b in zip(found, wanted, strict=True))


def in_tensorboard(folder):
    """Return all scalars in TensorBoard's files."""
    files = read_tensorboard(folder)
    return [(name, each.step, each.value) for name in files.Tags()["scalars"] for each in files.Scalars(name)]


def read_tensorboard(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: PLC0415  slow

    files = EventAccumulator(str(folder), {"scalars": 0, "tensors": 0, "images": 0})
    files.Reload()
    return files


def in_mlflow(uri, **which):
    """Return all metrics of the only run."""
    (run,) = mlflow_runs(uri, **which)
    return metrics_of(uri, run)


def metrics_of(uri, run):
    from mlflow import MlflowClient  # noqa: PLC0415  takes seconds

    client = MlflowClient(uri)
    histories = [client.get_metric_history(run.info.run_id, name) for name in run.data.metrics]
    return [(each.key, each.step, each.value) for history in histories for each in history]


def mlflow_runs(uri, experiment="engine-core"):
    """Return the runs of an experiment, the oldest first."""
    from mlflow import MlflowClient  # noqa: PLC0415  takes seconds

    client = MlflowClient(uri)
    found = client.get_experiment_by_name(experiment)
    return [] if found is None else list(client.search_runs([found.experiment_id], order_by=["start_time ASC"]))


def make_tracker(name, place):
    """Return a tracker of this name, with its package's own class."""
    if name == "tensorboard":
        from engine_core_tensorboard import TensorBoard  # noqa: PLC0415

        return TensorBoard(place)
    from engine_core_mlflow import MLflow  # noqa: PLC0415

    return MLflow(place)


@contextmanager
def killing():
    """Yield what trains in another process, which kills itself at a point, and returns its exit code."""
    command = [sys.executable, __file__]
    settings = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True, env=settings) as process:

        def train(**job):
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
            return int(json.loads(process.stdout.readline()))

        yield train
        process.stdin.close()


def run(job):
    """Train in a process of its own, which kills itself at a point; return its exit code."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            torch.set_num_threads(1)
            os.chdir(job["folder"])  # where MLflow makes a folder
            tracker = make_tracker(job["tracker"], job["place"])
            event, batch = job["point"] or ("fit_end", 99)
            dies = Cut(event, batch, lambda state: os.kill(os.getpid(), signal.SIGKILL))
            fit(tracker, Path(job["folder"]), SendsAtOnce(tracker), dies, run_name="killed")
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    import mlflow  # noqa: F401
    import torch.utils.tensorboard

    for line in sys.stdin:
        sys.stdout.write(json.dumps(run(json.loads(line))) + "\n")
        sys.stdout.flush()
