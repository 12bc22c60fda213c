"""Ask one of several ranks for the end, in many ways, one run after the other; write what each rank did."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils import data

from engine_core import Callback
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.checkpoint import store
from engine_core.config import Config
from engine_core.run import Run, result

sys.path.insert(0, str(Path(__file__).parent))
from trainers import trainer_of

RANK = int(os.environ["RANK"])
FOLDER = Path(sys.argv[2])
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


def slowly(write, seconds=0.5):
    """Return what writes once the other rank could have ended."""

    def written(*args, **kwargs):
        time.sleep(seconds)
        return write(*args, **kwargs)

    return written


def train(how, *, ends=False):
    """Train; return how it ended, at which batch, and the latest checkpoint; or let an interruption end the process."""
    store.write_content = slowly(WRITE, 4 if ends else 0.5) if "SIG" in how else WRITE
    torch.manual_seed(0)
    folder = FOLDER / how.replace(" ", "-")
    model, data = nn.Linear(6, 4), {"eval_dataloader": rows(), "eval_interval": "2ba"}
    trainer = trainer_of(model, rows(), callbacks=[Asking(how), CheckpointSaver(folder, "100ba")], **data)
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
    folder = FOLDER / f"run-{how}"
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


def spent():
    """Return what a Trainer says that an argument was refused to, on all ranks, when it is used again."""
    trainer, said = trainer_of(nn.Linear(6, 4), rows()), []
    evaluations = (lambda: trainer.eval(rows()), lambda: trainer.predict(rows()))
    for call in (lambda: trainer.fit("1 week"), trainer.fit, *evaluations):
        try:
            call()
        except (ValueError, RuntimeError) as error:
            said.append(f"{type(error).__name__}: {error}")
    trainer.close()
    return said


def main():
    """Run the cases; some are refused on all ranks alike, which does not end the process, as the last one does."""
    cases = ["stop", "pause", "SIGTERM", "SIGINT", "eval SIGTERM", "eval stop", "fit_end SIGTERM"]
    results = {how: train(how) for how in cases}
    results["runs"] = [run("SIGTERM"), run("pause"), run("nothing")]
    results["spent"] = spent()
    results["again"] = train("again")
    (FOLDER / f"rank-{RANK}.json").write_text(json.dumps(results))
    train("last SIGTERM", ends=True)


main()
