"""Trains in forked processes that are killed: `python killing.py`, a job as JSON on each line of its input.

A job is `folder`, the `width` of the net, and `kill_after_s`, or `kill_at_step`: the number of a step in the file
system that the save of the checkpoint `kill_in` makes. The answer says how the process ended, and after how long. This
process imports and never computes: what that would start can not be forked.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch._dynamo  # optimizers import it when they first step
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from engine_core import Trainer
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.loggers.run_files import RunFiles
from engine_core.registry import Registry

STEPS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.scandir", "os.listdir", "shutil.rmtree"}


def train(folder, width):
    """Train to the end, or resume from the latest checkpoint; with a width of 64 000 the state takes 4 MB."""
    torch.set_num_threads(1)
    torch.manual_seed(3)
    inputs, targets = torch.randn(24, 4), torch.randint(3, (24,))
    model = nn.Sequential(nn.Linear(4, width), nn.Dropout(0.2), nn.Linear(width, 3), nn.BatchNorm1d(3))
    trainer = Trainer(
        model,
        DataLoader(TensorDataset(inputs, targets), 4, shuffle=True),
        max_duration="9ba",
        loss_fn=nn.CrossEntropyLoss(),
        optimizers=lambda p: torch.optim.SGD(p, lr=0.001, momentum=0.9),
        eval_dataloader=[(inputs[:5], targets[:5])],
        seed=1,
        progress_bar=False,
        device="cpu",
        callbacks=[CheckpointSaver(folder / "checkpoints", "1ba", keep_last=2)],
        loggers=RunFiles(folder),
        autoresume=True,
    )
    with trainer:
        trainer.fit()


def die_at(step, saved, folder):
    """Count the steps of the writing thread from the start of one save on, and kill this process before the chosen one.

    The count is in `folder/steps` when the next save begins.
    """
    counted = [None]

    def hear(event, arguments):
        if event not in STEPS or threading.current_thread().name != "engine-core checkpoint":
            return
        if event == "os.mkdir" and f"{saved}." in str(arguments[0]):
            counted[0] = 0
        elif event == "os.mkdir" and counted[0] is not None:
            steps, counted[0] = counted[0], None
            (folder / "steps").write_text(str(steps))
        if counted[0] is not None:
            if counted[0] == step:
                os.kill(os.getpid(), signal.SIGKILL)
            counted[0] += 1

    sys.addaudithook(hear)


def run(job):
    folder, started_s = Path(job["folder"]), time.perf_counter()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            if "kill_at_step" in job:
                die_at(job["kill_at_step"], job["kill_in"], folder)
            train(folder, job["width"])
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)
    if "kill_after_s" in job:
        time.sleep(job["kill_after_s"])
        os.kill(pid, signal.SIGKILL)  # one that has ended waits for the next line, and nothing happens to it
    _, status = os.waitpid(pid, 0)
    return {"code": os.waitstatus_to_exitcode(status), "seconds": time.perf_counter() - started_s}


if __name__ == "__main__":
    Registry.scan()  # what else each process would do anew
    for line in sys.stdin:
        sys.stdout.write(json.dumps(run(json.loads(line))) + "\n")
        sys.stdout.flush()
