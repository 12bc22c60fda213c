"""Ask one of several ranks for the end, in many ways, one run after the other; write what each rank did."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils import data

from engine_core import Callback, Trainer
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.checkpoint import store
from engine_core.config import Config
from engine_core.errors import ArgumentError
from engine_core.run import Run, result

RANK = int(os.environ["RANK"])
OUT = Path(sys.argv[1])
WRITE, WRITE_WEIGHTS = store.write_content, result.write_weights


class Asking(Callback):
    """Asks for the end on rank 1 after three batches, in the evaluation that follows the second, or at FIT_END."""

    def __init__(self, how):
        self.how = how

    def batch_end(self, state, logger):
        if RANK == 1 and state.timestamp.batch == 3 and not self.how.startswith(("eval", "fit_end")):
            self.ask(state)

    def eval_batch_end(self, state, logger):
        if RANK == 1 and state.eval_timestamp.batch == 2 and self.how.startswith("eval"):
            self.ask(state)

    def fit_end(self, state, logger):
        if RANK == 1 and self.how.startswith("fit_end"):
            self.ask(state)

    def ask(self, state):
        how = self.how.split()[-1]
        if how.startswith("SIG"):
            os.kill(os.getpid(), getattr(signal, how))
        elif how == "stop":
            state.stop_training("enough")
        elif how == "pause":
            state.pause_training("later")
        elif how == "skip":
            state.skip_step()


def slowly(write, seconds=0.5):
    """Return what writes once the other rank could have ended."""

    def written(*args, **kwargs):
        time.sleep(seconds)
        return write(*args, **kwargs)

    return written


def train(how, *, ends=False, **settings):
    """Train; return how it ended, at which batch, and the latest checkpoint; or let an interruption end the process."""
    store.write_content = slowly(WRITE, 4 if ends else 0.5) if "SIG" in how else WRITE
    torch.manual_seed(0)
    rows = data.TensorDataset(torch.randn(53, 6), torch.randint(0, 4, (53,)))
    folder = OUT.parent / how.replace(" ", "-")
    model = nn.Linear(6, 4)
    settings = {"callbacks": [Asking(how), CheckpointSaver(folder, "100ba")]} | settings
    trainer = Trainer(
        model,
        data.DataLoader(rows, batch_size=8),
        max_duration="2ep",
        loss_fn=nn.CrossEntropyLoss(),
        optimizers=lambda p: torch.optim.SGD(p, lr=0.1),
        eval_dataloader=data.DataLoader(rows, batch_size=8),
        eval_interval="2ba",
        device="cpu",
        **settings,
    )
    ended = "returned"
    with trainer:
        try:
            trainer.fit()
        except (SystemExit, KeyboardInterrupt) as error:
            if ends:
                raise
            ended = repr(error)
    latest = folder / "latest"
    return [ended, trainer.state.timestamp.batch, latest.read_text().strip() if latest.exists() else None]


def rows():
    """Return the loader of a config."""
    return data.DataLoader(data.TensorDataset(torch.randn(53, 6), torch.randint(0, 4, (53,))), batch_size=8)


def run(how):
    """Train what a config describes until a request; return how it ended, and what of its end is there by then."""
    result.write_weights = slowly(WRITE_WEIGHTS)
    folder = OUT.parent / f"run-{how}"
    config = {
        "model": {"target": "torch.nn:Linear", "args": {"in_features": 6, "out_features": 4}},
        "data": {"target": "__main__:rows"},
        "loss": {"target": "torch.nn:CrossEntropyLoss"},
        "optimizer": {"target": "torch.optim:SGD", "args": {"lr": 0.1}},
        "callbacks": [{"target": "__main__:Asking", "args": {"how": how}}],
        "trainer": {"max_duration": "2ep", "device": "cpu"},
    }
    run = Run(Config.model_validate(config), folder)
    try:
        ending = run.train()
    except SystemExit as error:
        ending = run.end(error)
    return [ending.status, [name for name in ("model.safetensors", "results.json") if (folder / name).exists()]]


def differing(**settings):
    """Return the error that ranks with different settings get."""
    try:
        train("differs", **settings)
    except ArgumentError as error:
        return str(error)
    return None


def spent():
    """Return what a Trainer says that an argument was refused to, on all ranks, when it is used again."""
    model, rows = nn.Linear(6, 4), [(torch.ones(2, 6), torch.zeros(2, 4))]
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(model, rows, max_duration="1ep", loss_fn=nn.MSELoss(), optimizers=sgd, device="cpu")
    said = []
    for call in (lambda: trainer.fit("1 week"), trainer.fit, lambda: trainer.eval(rows), lambda: trainer.predict(rows)):
        try:
            call()
        except (ValueError, RuntimeError) as error:
            said.append(f"{type(error).__name__}: {error}")
    trainer.close()
    return said


def main():
    """Run the cases; some are refused on all ranks alike, which does not end the process, as the last one does."""
    cases = ["stop", "pause", "SIGTERM", "SIGINT", "eval SIGTERM", "eval stop", "eval pause", "fit_end SIGTERM"]
    results = {how: train(how) for how in cases}
    results["runs"] = [run("SIGTERM"), run("pause"), run("nothing")]
    results["clip"] = differing(grad_clip_norm=1.0 + RANK)
    results["spent"] = spent()
    results["again"] = train("again")
    (OUT.parent / f"rank-{RANK}.json").write_text(json.dumps(results))
    train("last SIGTERM", ends=True)


main()
