"""Save and resume runs on several ranks, one after the other: the program of test_resuming.

`resuming.py OUT.json FOLDER whole` runs each case to its end, and cut and resumed; `... moved` resumes what another
number of processes saved; `... killed` is killed while it saves, and started again.
"""

import errno
import json
import os
import signal
import sys
import warnings
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.utils import data as torch_data
from torchdata.stateful_dataloader import StatefulDataLoader

from engine_core import Algorithm, Callback, Event, by_name
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.callbacks.loss_guard import LossGuard
from engine_core.checkpoint import store, writing
from engine_core.errors import CheckpointError
from engine_core.parallel import DDP, FSDP, join
from engine_core.randomness import OwnGenerator

sys.path.insert(0, str(Path(__file__).parent))
from trainers import Logs, trainer_of

ROWS, CUT = 53, 5
PAUSE = 10
"""In mid-epoch for loaders of 7 batches and of 4."""
WAYS = {"ddp": "ddp", "fsdp": FSDP(blocks=["Linear"]), "local": DDP(data="local")}
SB = ("selective_backprop", {"start": 0, "end": 1, "interrupt": 0, "scorer": "carried", "index_key": 2})
EMA = {"algorithms": [("ema", {"decay": 0.9})]}
ADAMW, MOMENTUM = partial(torch.optim.AdamW, lr=0.02), partial(torch.optim.SGD, lr=0.1, momentum=0.9)
CASES = {
    "averages": {"algorithms": [("swa", {"start": 0.2})], "dropout": 0.3, "noise": True, "shuffle": True},
    "tables": {"algorithms": [SB], "shuffle": True, "dropout": 0.3},
    "an order of its own": {"algorithms": [("info_batch", {})], "shuffle": True, "dropout": 0.3, "num_workers": 2},
    "running statistics": {"norm": True, **EMA, "shuffle": True},
    "workers that persist": {"num_workers": 2, "persistent_workers": True, "shuffle": True, "adam": True},
    "a loader with a state": {"way": "local", "stateful": True, "shuffle": True, "num_workers": 2, "dropout": 0.3},
    "sharded": {"way": "fsdp", "adam": True, **EMA, "dropout": 0.3, "shuffle": True},
    "sharded, in one file": {"way": "fsdp", "adam": True, "sharded": False, "shuffle": True},
    "sharded, by name": {"way": "fsdp", "optimizers": by_name({"^0": ADAMW, "*": MOMENTUM}), "shuffle": True},
    "whole, in shards": {"sharded": True, "adam": True, **EMA, "shuffle": True},
}
MOVED = {f"from {way}": {"way": way, "shuffle": True} for way in ("ddp", "fsdp")}
MOVED |= {"from ddp in shards": {**MOVED["from ddp"], "sharded": True}, "local": {"way": "local", "shuffle": False}}

UNITS = [("11ba", "0.3dur"), ("61sp", "20sp"), ("0.4sec", "0.1sec")]


class Noise(Algorithm):
    """Adds to each row what it draws on this rank alone."""

    def __init__(self):
        self.own = OwnGenerator("noise", shared=False)

    def match(self, event, state):
        return event is Event.BATCH_START

    def apply(self, event, state, logger):
        x, *rest = state.batch
        state.batch = (x + torch.randn(x.shape, generator=self.own.of(state, self)) / 4, *rest)

    def state_dict(self):
        return self.own.state_dict()

    def load_state_dict(self, state):
        self.own.load_state_dict(state)


class Pause(Callback):
    """Pauses on one rank, which ends the fit for all, without an evaluation."""

    def __init__(self, at):
        self.at = at

    def batch_end(self, state, logger):
        if state.timestamp.batch == self.at and state.rank == state.world_size - 1:
            state.pause_training("enough")


def make(folder, ranks, callbacks=(), **case):
    """Return the trainer of a case, which saves in a folder, if one is given, and resumes from there."""
    rate, logs = case.pop("dropout", 0.0), Logs()
    torch.manual_seed(0)
    x, y = torch.randn(ROWS, 6), torch.randint(0, 4, (ROWS,))
    norms = [nn.BatchNorm1d(16)] if case.pop("norm", False) else []
    model = nn.Sequential(nn.Linear(6, 16), *norms, nn.Tanh(), nn.Dropout(rate), nn.Linear(16, 4))
    way, adam, noise = case.pop("way", "ddp"), case.pop("adam", False), case.pop("noise", False)
    rows = torch_data.TensorDataset(x, y, torch.arange(ROWS))
    if way == "local":
        rows = torch_data.Subset(rows, range(ranks.rank, ROWS - 1, ranks.size))
    kind = StatefulDataLoader if case.pop("stateful", False) else torch_data.DataLoader
    loads = ("shuffle", "num_workers", "persistent_workers")
    given = {name: case.pop(name) for name in loads if name in case}
    saving = {"interval": case.pop("interval", "100ba"), "keep_best": 1, "metric": "eval/loss"}
    sharded = case.pop("sharded", None)
    savers = [] if folder is None else [CheckpointSaver(folder, sharded=sharded, **saving)]
    settings = {
        "optimizers": ADAMW if adam else MOMENTUM,
        "schedulers": (lambda o: torch.optim.lr_scheduler.StepLR(o, 3, 0.8), "1ba"),
        "eval_dataloader": torch_data.DataLoader(torch_data.TensorDataset(x, y), batch_size=20),
        "algorithms": [*case.pop("algorithms", ()), *([Noise()] if noise else [])],
        "callbacks": [("early_stopper", {"metric": "eval/loss", "patience": 9}), *savers, *callbacks],
        "autoresume": folder is not None,
        "parallel": WAYS[way] if ranks.size > 1 or way == "local" else None,
        "max_duration": "3ep",
        **case,
    }
    return trainer_of(model, kind(rows, batch_size=8, **given), loggers=logs, **settings), logs


def run(folder, ranks, callbacks=(), **case):
    """Train a case; return the weights, what was logged, and what was warned of on this rank."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", "nothing reads item 2 of the batch")  # the numbers of the rows, for tables
        trainer, logs = make(folder, ranks, callbacks, **case)
        with trainer:
            trainer.fit()
    state = trainer.state
    whole = {k: v.full_tensor() if hasattr(v, "full_tensor") else v for k, v in state.model.state_dict().items()}
    return {
        "weights": {name: value.tolist() for name, value in whole.items()},
        "logs": logs.rows,
        "clock": [*state.timestamp[:5]],
        "warned": [str(warning.message) for warning in caught if "torch" not in str(warning.category.__module__)],
        "noise": [generator.tolist() for a in state.algorithms for generator in _generators(a)],
        "next": torch.rand(3).tolist(),
    }


def _generators(algorithm):
    return [algorithm.own.state_dict()["generator"]] if isinstance(algorithm, Noise) else []


def whole(folder, ranks):
    """Train each case to its end, and again with a pause in the second epoch, after which another trainer resumes."""
    found = {}
    for name, case in CASES.items():
        place = folder / name
        found[name] = [run(place / "whole", ranks, **case), run(place / "cut", ranks, [Pause(PAUSE)], **case)]
        found[name].append(run(place / "cut", ranks, **case))
    for name, case in MOVED.items():
        run(folder / name, ranks, [Pause(CUT)], **case)
        for way in ("ddp", "fsdp") if case["way"] != "local" else ():
            found[f"{name} to {way}"] = [run(None, ranks, **{**case, "load_path": folder / name, "way": way})]
    spoiled = Spoiled()
    guarded = run(folder / "spoiled", ranks, [spoiled, LossGuard("rollback")], noise=True, interval="3ba")
    found["rolled back"] = [spoiled.drawn, guarded["warned"], guarded["weights"]]
    found["units"] = [units(ranks, unit) for unit in UNITS]
    for rank, failing in enumerate([(store.Store, "begin"), (writing, "write_own")]):
        with no_room(*failing) if ranks.rank == rank else nullcontext():
            found[f"no room on rank {rank}"] = [run(folder / f"no room {rank}", ranks, **CASES["sharded"])]
    return found


class Spoiled(Callback):
    """Spoils a batch on rank 0, and keeps the generators of the noise after each batch."""

    def __init__(self):
        self.drawn = []

    def before_train_batch(self, state, logger):
        if state.timestamp.batch == 4 and state.rank == 0:
            state.batch = (state.batch[0] * torch.nan, *state.batch[1:])

    def batch_end(self, state, logger):
        self.drawn += [generator.tolist() for a in state.algorithms for generator in _generators(a)]


class Noted(Callback):
    """Notes where evaluations fall."""

    def __init__(self):
        self.clocks = []

    def eval_end(self, state, logger):
        self.clocks.append([*state.timestamp[:3]])


def units(ranks, unit):
    """Return seed and name, which were not given, where a run ended, and where it was evaluated."""
    noted, (length, interval) = Noted(), unit
    torch.manual_seed(ranks.rank)
    trainer, _ = make(None, ranks, [noted], seed=None, shuffle=True, max_duration=length, eval_interval=interval)
    with trainer:
        trainer.fit()
    state = trainer.state
    return [state.seed, state.run_name, [*state.timestamp], noted.clocks]


@contextmanager
def no_room(owner, name):
    """Let the disk be full for what writes a checkpoint."""
    former = getattr(owner, name)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    setattr(owner, name, full)
    try:
        yield
    finally:
        setattr(owner, name, former)


def moved(folder, ranks):
    """Resume on this number of ranks what was saved by another."""
    found = {}
    for name, case in MOVED.items():
        for way in ("ddp", "fsdp") if case["way"] != "local" else ("local",):
            resumed = run(None, ranks, shuffle=way != "local", load_path=folder / name, way=way)
            found[f"{name} to {way}"] = [resumed]
    saved = folder / "from fsdp"
    try:
        run(None, ranks, load_path=saved, load_changed="error")
    except CheckpointError as error:
        found["refused"] = str(error)
    with make(None, ranks, load_path=saved, load_weights_only=True)[0] as trainer:
        own = trainer.state.model
        found["weights alone"] = [[*trainer.state.timestamp[:2]], {k: v.tolist() for k, v in own.state_dict().items()}]
    return found


class Killed(Callback):
    """Kills the process in a save: the attempt says on which rank, and before which of its files."""

    def batch_end(self, state, logger):
        attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        if attempt < 2 and state.rank == 1 - attempt and state.timestamp.batch == 6 + 5 * attempt:

            def die(*_, **__):
                os.kill(os.getpid(), signal.SIGKILL)

            setattr(writing, ("checksum_of", "_tell")[state.rank], die)


def main():
    ranks = join(DDP(), "cpu")
    out, folder, action = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    if action == "killed":
        found = {"killed": [run(folder, ranks, [Killed()], interval="1ba", **CASES["sharded"])]}
    else:
        found = {"whole": whole, "moved": moved}[action](folder, ranks)
    every = ranks.each(json.dumps(found))
    if ranks.rank == 0:
        out.write_text(json.dumps([json.loads(each) for each in every]))


if __name__ == "__main__":
    main()
