"""Runs with drawn settings that get SIGINT or SIGTERM at drawn times: `python signalling.py FOLDER DRAW...`.

For each draw a run is trained without a signal; then again, with signals that another process sends, and resumed until
it is complete; then it evaluates and predicts, with a signal in each. A JSON file for each draw and rank has what has
gone wrong. `python signalling.py FOLDER $(seq 0 499)` tries five hundred and prints it, and where signals came; with
`-m torch.distributed.run --nproc-per-node 2` before the program's name two ranks train, and one of them gets it.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
import warnings
from pathlib import Path

import numpy as np
import torch
from resuming import digest, parts_of, settings_of, trainer_of
from torch.nn.modules import module as torch_modules

from engine_core import Callback

RANK, SIZE = (int(os.environ.get(name, given)) for name, given in (("RANK", "0"), ("WORLD_SIZE", "1")))
SIGNALS = (signal.SIGINT, signal.SIGTERM)
_GLOBAL_HOOKS = [name for name in vars(torch_modules) if name.startswith("_global_") and name.endswith("_hooks")]


def surroundings(state):
    """Return what is the run's own between two batches: weights, modes, hooks, generators."""
    modules = [vars(module) for module in state.model.modules()]
    return {
        "weights": digest(dict(state.model.state_dict())),
        "modes": [module["training"] for module in modules],
        "frozen": [parameter.requires_grad for parameter in state.model.parameters()],
        "hooks": [[len(own) for name, own in module.items() if name.endswith("_hooks")] for module in modules],
        "forwards": ["forward" in module for module in modules],
        "global hooks": [len(getattr(torch_modules, name)) for name in _GLOBAL_HOOKS],
        "torch's modes": [torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")],
        "generators": digest([torch.get_rng_state(), random.getstate(), np.random.get_state()]),
    }


class Steps(Callback):
    """Keeps the surroundings at each clock."""

    def __init__(self):
        self.seen = {}

    def keep(self, state, logger):
        self.seen.setdefault(clock(state), []).append(surroundings(state))

    fit_start = epoch_start = batch_checkpoint = epoch_checkpoint = fit_end = keep


def clock(state):
    return repr(state.timestamp[:2])


class Late:
    """The handlers of a program around its runs: a signal that comes when none is under way says nothing."""

    def __init__(self):
        for number in SIGNALS:
            signal.signal(number, self)

    def __call__(self, number, frame): ...

    def are_back(self):
        return all(signal.getsignal(number) is self for number in SIGNALS)


def signalled(call, number, after_s):
    """Call while another process sends this one a signal, unless `after_s` is None; return what that raised."""
    sends = "true" if after_s is None else f"sleep {after_s:.4f}; kill -{int(number)} {os.getpid()}"
    sender = subprocess.Popen(["sh", "-c", sends])
    try:
        call()
    except (KeyboardInterrupt, SystemExit) as error:
        return error
    finally:
        sender.wait()
    return None


class Draw:
    """The runs of one draw: where signals came, and what has gone wrong."""

    def __init__(self, number, folder, late):
        self.places, self.wrong = [], []
        self._draw, self._folder, self._late = random.Random(number), folder, late
        self._settings = settings_of(number)
        if SIZE > 1:  # a save lets buffers be the mean over ranks, so only runs that save as often have the same bits
            self._settings["save_interval"] = "1ba"

    def run(self):
        """Train the whole run, then the same one with signals, until it is complete."""
        steps, began_s = Steps(), time.perf_counter()
        made, journal = self._made("whole", steps)
        with made:
            made.fit()
        taken_s, whole = time.perf_counter() - began_s, parts_of(made, journal)
        for attempt in range(5):
            torch.manual_seed(attempt)  # a new process draws from elsewhere
            made, journal = self._made("parts", Steps())
            with made:
                if not self._came(made, made.fit, "fit", steps.seen, 1.1 * taken_s if attempt < 4 else None):
                    break
        now = parts_of(made, journal)
        kept = [name for name in whole if not RANK or name not in ("batches", "logged")]  # those are rank 0's
        self.wrong += [f"{name}: {whole[name]!r}, {now[name]!r}" for name in kept if now[name] != whole[name]]

    def evaluate(self):
        """Evaluate and predict the trained model, with a signal in each."""
        with self._made("parts", Steps())[0] as made:
            before = {clock(made.state): [surroundings(made.state)]}
            self._came(made, lambda: [made.eval() for _ in range(10)], "eval", before, 0.2)
            loader = made.state.evaluators["eval0"]
            if SIZE == 1:
                self._came(made, lambda: [[*made.predict(loader)] for _ in range(10)], "predict", before, 0.2)

    def _made(self, place, steps):
        seed = self._settings["seed"]
        made, journal = trainer_of(self._settings, self._folder / place, None, seed=seed, autoresume=True)
        made.state.callbacks.append(steps)
        return made, journal

    def _came(self, made, call, what, seen, within_s):
        """Call, with a signal on one of the ranks; return whether it came, after a look at what it has left."""
        draw = self._draw
        number, after_s, rank = draw.choice(SIGNALS), draw.uniform(0, within_s or 1), draw.randrange(SIZE)
        error = signalled(call, number, None if within_s is None or rank != RANK else after_s)
        if error is not None:
            owes = ", evaluating" * (made._session.status.owed is not None)
            self.places.append(f"{what}: {number.name} {clock(made.state)}{owes}")
            is_its = isinstance(error, KeyboardInterrupt if number == signal.SIGINT else SystemExit)
            self.wrong += [] if is_its else [f"{error!r} arrived"]
            self.wrong += [] if self._late.are_back() else ["handlers"]
            now = surroundings(made.state)
            self.wrong += [n for n in now if all(each[n] != now[n] for each in seen.get(clock(made.state), []))]
        return error is not None


def main(root, *numbers):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    late = Late()
    for number in map(int, numbers):
        folder = Path(root) / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        drawn = Draw(number, folder, late)
        try:
            drawn.run()
            drawn.evaluate()
        except Exception:  # noqa: BLE001  the other draws are tried all the same
            drawn.wrong.append(f"{settings_of(number)}\n{traceback.format_exc()}")
        (folder / f"rank-{RANK}.json").write_text(json.dumps(drawn.wrong))
        sys.stdout.write(f"{number} {'; '.join(drawn.places)}: {drawn.wrong or 'right'}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
