"""Fail in many ways on one of two ranks, and write how both ended.

Each case is a pair of processes, forked from this one, which has imported all; pairs run side by side.
"""

import gc
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils import data

from engine_core import Algorithm, Callback
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.checkpoint import store, writing
from engine_core.parallel import DDP

sys.path.insert(0, str(Path(__file__).parent))
from trainers import trainer_of

EVENTS = [
    *("init", "fit_start", "after_dataloader", "before_train_batch", "after_forward", "before_backward", "batch_end"),
    *("batch_checkpoint", "epoch_end", "eval_start", "eval_batch_end", "fit_end"),
]
OTHERS = ["model", "model@0", "backward", "loader", "loader workers", "memory", "sleep", "kill", "hang", "exit"]
OTHERS += ["close", "close of all", "predict", "between", "kill@0", "slow save@0", "slow share"]
WAIT_S = 3
HOLD_S = 60
AT_ONCE = 5


def note():
    Path("failed").write_text(str(time.time()))


def hang():
    time.sleep(HOLD_S)


def fail():
    note()
    raise ValueError("boom")


class Failing(Callback):
    """Does in the second batch what the case says, on the rank that it says."""

    def __init__(self, case, is_bad):
        self.case, self.is_bad = case, is_bad

    def close(self, state, logger):
        if self.case == "close of all" or (self.case == "close" and self.is_bad):
            time.sleep(HOLD_S)

    def batch_start(self, state, logger):
        if state.timestamp.batch != 1:
            return
        if not self.is_bad:
            time.sleep(HOLD_S * (self.case == "sleep"))
        elif self.case in ("sleep", "close", "close of all"):
            fail()
        elif self.case in ("kill", "hang", "exit"):
            note()
            {"kill": lambda: os.kill(os.getpid(), signal.SIGKILL), "hang": hang, "exit": sys.exit}[self.case]()


def save_slowly(case):
    """Let the first file of this rank take longer than the others wait for a message."""
    module, name = (store, "write_content") if case == "slow save" else (writing, "write_own")
    save = getattr(module, name)

    def slow(*arguments):
        setattr(module, name, save)
        note()
        time.sleep(2 * WAIT_S)
        return save(*arguments)

    setattr(module, name, slow)


class AtEvent(Algorithm):
    """Raises at an event, on one rank: what it is given is the same on all."""

    event = None

    def match(self, event, state):
        return event == self.event

    def apply(self, event, state, logger):
        fail()


class Rows(data.Dataset):
    """53 rows, of which one can't be read."""

    def __init__(self, *, is_bad):
        self.is_bad = is_bad

    def __len__(self):
        return 53

    def __getitem__(self, row):
        if self.is_bad and row >= 20:
            fail()
        return torch.ones(6) * row / 53, row % 4


class Model(nn.Sequential):
    """Can't do its second forward, or its backward."""

    case = ""

    def forward(self, inputs):
        outputs = super().forward(inputs)
        if self.case == "model" and self.training:
            fail()
        if self.case == "backward" and self.training:
            outputs.register_hook(lambda _: fail())
        if self.case == "memory":
            note()
            torch.empty(1 << 60)
        return outputs


def train(case, is_bad):
    """Train on this rank."""
    torch.manual_seed(0)
    model = Model(nn.Linear(6, 8), nn.Linear(8, 4))
    if is_bad:
        model.case = case
    algorithm = AtEvent()
    algorithm.event = case if is_bad else None
    rows = Rows(is_bad=is_bad and "loader" in case)
    loader = data.DataLoader(rows, batch_size=8, num_workers=2 if "workers" in case else 0)
    savers = [CheckpointSaver("saved", "3ba", sharded=case == "slow share")] if "slow" in case else []
    if savers and is_bad:
        save_slowly(case)
    given = {"algorithms": algorithm, "callbacks": [Failing(case, is_bad), *savers]}
    given["parallel"] = DDP(timeout=f"{WAIT_S}sec" if case == "hang" or savers else "5m")
    with trainer_of(
        model, loader, eval_dataloader=data.DataLoader(Rows(is_bad=False), batch_size=8), **given
    ) as trainer:
        trainer.fit("1ep")
        if case == "predict":
            for _ in trainer.predict(loader):
                if is_bad:
                    fail()
        if case == "between" and is_bad:
            fail()
        trainer.fit("1ep")


class Pair:
    """The two processes of a case, in a folder of their own."""

    def __init__(self, case, bad, folder):
        self.case, self.folder, self.codes, self.last_s = case, folder, [None, None], 0.0
        folder.mkdir()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        self.began_s = time.time()
        self.pids = [os.fork() or self._train(rank, bad, port) for rank in range(2)]

    def _train(self, rank, bad, port):
        os.chdir(self.folder)
        for number in (1, 2):
            os.dup2(os.open(f"output-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "RANK": str(rank)}
        os.environ["TORCHELASTIC_ERROR_FILE"] = f"error-{rank}.json"
        train(self.case, rank == bad)
        sys.exit(0)

    def has_ended(self):
        """Look who has ended; end the other one of a rank that takes its time to close, as torchrun does."""
        for rank, pid in enumerate(self.pids):
            if self.codes[rank] is None and (found := os.waitpid(pid, os.WNOHANG))[0]:
                self.codes[rank], self.last_s = os.waitstatus_to_exitcode(found[1]), time.time()
                if "close" in self.case and self.codes[1 - rank] is None:
                    os.kill(self.pids[1 - rank], signal.SIGTERM)
            elif self.codes[rank] is None and time.time() > self.began_s + 2 * HOLD_S:
                os.kill(pid, signal.SIGKILL)
        return None not in self.codes

    def result(self):
        """Return exit codes, output, what torchrun would show, and seconds from the failure to the last end."""
        records = [self.folder / f"error-{rank}.json" for rank in range(2)]
        failed = self.folder / "failed"
        return {
            "codes": self.codes,
            "outputs": [(self.folder / f"output-{rank}").read_text() for rank in range(2)],
            "records": [json.loads(record.read_text())["message"] if record.exists() else None for record in records],
            "seconds": self.last_s - float(failed.read_text()) if failed.exists() else None,
        }


def main(out, cases):
    """Run the cases, some at once; `case@0` fails on rank 0."""
    torch.optim.SGD([nn.Parameter(torch.zeros(1))])  # imports much, once for all
    gc.freeze()  # else each process copies it all at its end
    waiting, running, results = list(cases), [], {}
    while waiting or running:
        while waiting and len(running) < AT_ONCE:
            name = waiting.pop(0)
            case, _, bad = name.partition("@")
            running.append((name, Pair(case, int(bad or 1), Path(out).parent / name)))
        for pair in [pair for pair in running if pair[1].has_ended()]:
            running.remove(pair)
            results[pair[0]] = pair[1].result()
        time.sleep(0.02)
    Path(out).write_text(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:] or [*EVENTS, *OTHERS])
