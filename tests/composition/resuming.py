"""Runs with drawn settings, whole, or cut and resumed: `python resuming.py RANKS FOLDER DRAW...`.

There are four phases, each in a process of its own, or in several ranks, which are forked from one that has imported
what takes long: `whole`; then `stopped`, `resumed` and `again`, each of which resumes the one before it, and of which
all but the last are cut where the draw says. For each draw a phase writes a JSON file with a digest of each part of the
run's end, or with what the run raised. `python resuming.py 1 FOLDER $(seq 0 999)` tries a thousand, and
`FOLDER/differences.json` says in what each resumed run differs from the whole one.
"""

import contextlib
import functools
import gc
import hashlib
import json
import os
import random
import sys
import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from conftest import ARGUMENTS, BATCHES, IN_PYTHON, NAMES, digits_net
from drawn_loaders import BY_INDEX, drawn_loader, loader_of
from torch import nn
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.optim import lr_scheduler

from engine_core import Callback, LoggerDestination, Trainer, hookimpl
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.parallel import DDP
from engine_core.registry import Registry
from engine_core.state import length_of

ROWS, PHASES = 20, ("whole", "stopped", "resumed", "again")


def small_net():
    """Return a net that picks rows, and its optimizer, whatever trains the model."""
    net = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16, 10))
    return net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


FORMS = {
    "cutout": [{}, {"num_holes": 2, "length": 0.3}],
    "col_out": [{}, {"p_row": 0.4, "p_col": 0}],
    "rand_augment": [{}, {"num_ops": 1, "magnitude": 4}],
    "random_shift": [{}, {"max_shift": 3, "padding": "reflect"}],
    "ema": [{"decay": 0.9}, {"decay": 0.5, "update_interval": "3ba"}],
    "info_batch": [{}, {"r": 0.8, "delta": 1}],
    "layer_freezing": [{"start": 0.2, "level": 0.5}, {"start": 0.0, "level": 1.0}],
    "mixup": [{}, {"interpolate_loss": True}],
    "cutmix": [{}, {"interpolate_loss": True}],
    "progressive_resizing": [
        {"initial_scale": 0.75, "size_increment": 2},
        {"initial_scale": 0.75, "size_increment": 2, "mode": "crop"},
    ],
    "curriculum": [{}, {"start": 0.5, "end": 1, "root": 2}],
    "sequence_warmup": [
        {"duration": "1dur", "min_seq_length": 4, "step_size": 2},
        {"duration": "5ba", "min_seq_length": 4, "step_size": 1, "truncate": True},
    ],
    "sam": [{}, {"interval": 3}],
    "selective_backprop": [
        {"start": 0, "end": 1, "scale_factor": 1, "interrupt": 0},
        {"start": 0.3, "end": 0.8, "scale_factor": 1, "interrupt": 2, "selector": "cdf", "floor": 0.2},
        {"start": 0.2, "end": 1, "scale_factor": 1, "interrupt": 0, "scorer": "carried", "index_key": 2},
        {"start": 0, "end": 1, "scale_factor": 1, "interrupt": 3, "scorer": "stale", "index_key": 2},
        {"start": 0.2, "end": 1, "interrupt": 3, "scorer": "proxy", "proxy": small_net},
        {"start": 0, "end": 1, "interrupt": 0, "selector": "uniform", "multiple_of": 2},
    ],
    "stochastic_depth": [{}, {"drop_rate": 0.6, "drop_per": "batch"}],
    "lawa": [{}, {"interval": "3ba", "window": 2}],
    "lookahead": [{}, {"k": 3}],
    "zclip": [{"z_threshold": 0.5, "warmup": 2}, {"z_threshold": 0.5, "warmup": 8}],
    "swa": [{"start": 0.3}, {"start": 0.5, "update_interval": "2ba"}],
}
PLAIN = {"Adamax": 0.01, "NAdam": 0.01, "RAdam": 0.01, "Rprop": 0.005, "Adadelta": 0.5, "Adafactor": 0.01}
OPTIMIZERS = {
    **{name.lower(): lambda p, name=name, lr=lr: getattr(torch.optim, name)(p, lr=lr) for name, lr in PLAIN.items()},
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, maximize=False, foreach=False),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.005, momentum=0.5, centered=True),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.05, t0=3),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.02, lr_decay=0.1),
    "muon and adamw": [
        lambda p: torch.optim.Muon([each for each in p if each.dim() == 2], lr=0.01),
        lambda p: torch.optim.AdamW([each for each in p if each.dim() != 2], lr=0.01),
    ],
    "tensor lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01), capturable=False, foreach=False),
}


def in_turn(optimizer):
    parts = [lr_scheduler.LinearLR(optimizer, total_iters=4), lr_scheduler.ExponentialLR(optimizer, 0.9)]
    return lr_scheduler.SequentialLR(optimizer, parts, [4])


def chained(optimizer):
    parts = [lr_scheduler.ConstantLR(optimizer, 0.5, 3), lr_scheduler.ExponentialLR(optimizer, 0.9)]
    return lr_scheduler.ChainedScheduler(parts, optimizer)


SCHEDULERS = {
    "cosine": functools.partial(lr_scheduler.CosineAnnealingLR, T_max="1dur"),  # the first: it needs a length in ba
    "none": lambda _: (),
    "cosine restarted": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2, 2),
    "step": lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    "multi step": lambda o: lr_scheduler.MultiStepLR(o, [3, 7]),
    "constant": lambda o: lr_scheduler.ConstantLR(o, 0.5, 3),
    "linear": lambda o: lr_scheduler.LinearLR(o, total_iters=4),
    "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.8),
    "polynomial": lambda o: lr_scheduler.PolynomialLR(o, 20, 2.0),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.05, total_steps=30, cycle_momentum=False),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.001, 0.05, 2, cycle_momentum=False),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
    "multiplicative": lambda o: lr_scheduler.MultiplicativeLR(o, lambda step: 0.95),
    "chained": chained,
    "in sequence": in_turn,
}
STOPS = [
    "batch_start",
    "after_backward",
    "batch_end",
    "batch_checkpoint",
    "epoch_start",
    "epoch_end",
    "epoch_checkpoint",
]
STOPS += ["eval_start", "eval_batch_end", "eval_end"]


class CutError(Exception):
    """Ends a run in the middle, as a kill would."""


class Stop(Callback):
    """Pauses or ends a run at the nth time that this process comes to an event."""

    def __init__(self, event, number, *, pauses):
        self.left, self.pauses = number, pauses
        setattr(self, event, self.count)

    def count(self, state, logger):
        self.left -= 1
        if self.left == 0 and self.pauses:
            state.pause_training("as drawn")
        elif self.left == 0:
            raise CutError


class LastSeen:
    """A metric that depends on the order of the batches."""

    higher_is_better = False

    def update(self, outputs, targets):
        self.value = 0.5 * self.value + float(outputs.double().square().mean())

    def compute(self):
        return self.value

    def merge_state(self, others):
        self.value += sum(other.value for other in others)

    def reset(self):
        self.value = 0.0


class Accuracy:
    """The share of the rows that the outputs classify correctly."""

    def __init__(self):
        self.reset()

    def update(self, outputs, targets):
        self.right += int((outputs.argmax(1) == targets).sum())
        self.rows += len(targets)

    def compute(self):
        return self.right / self.rows

    def merge_state(self, others):
        self.right += sum(other.right for other in others)
        self.rows += sum(other.rows for other in others)

    def reset(self):
        self.right = self.rows = 0


def torchmetrics_accuracy():
    try:
        from torchmetrics.classification import MulticlassAccuracy  # noqa: PLC0415  it is not everywhere
    except ImportError:
        return Accuracy()
    return MulticlassAccuracy(10)


METRICS = {
    "none": dict,
    "own": lambda: {"a": Accuracy(), "last": LastSeen()},
    "theirs": lambda: {"a": torchmetrics_accuracy()},
}


CALLBACKS = [
    ("early_stopper", {"metric": "eval0/loss", "patience": 2}),
    ("gradient_norm", {}),
    ("loss_guard", {}),
    ("train_metrics", {}),
]


def settings_of(number):
    """Return the settings of a draw, as JSON has them."""
    draw = random.Random(number)
    chosen = [] if number == 0 else [NAMES[number % len(NAMES)]]  # so that a few draws have each
    others = [name for name in NAMES if name not in chosen]
    chosen += draw.sample(others, draw.randrange(4) if chosen else 0)
    for later in [name for name in chosen if name in ("ema", "lawa", "swa")][1:]:  # they exclude each other
        chosen.remove(later)
    if "layer_stacking" in chosen:
        chosen = [name for name in chosen if name != "lawa"]
    if "info_batch" in chosen:
        chosen = [name for name in chosen if name not in ("curriculum", "selective_backprop", "mixup", "cutmix")]
    optimizer = draw.choice(sorted(OPTIMIZERS))
    duration, metrics = draw.choice(["2ep", "3ep", "7ba", "9ba", "50sp"]), draw.choice(sorted(METRICS))
    loader, evaluated = drawn_loader(draw), [drawn_loader(draw) for _ in range(draw.choice([1, 1, 2]))]
    if {"curriculum", "info_batch"} & set(chosen):  # it gives the order of one loader for all ranks
        loader.update(kind="shuffled", sampler="random")
        evaluated = [{**each, "kind": "list", "sampler": "random"} for each in evaluated]
    return {
        "algorithms": [[name, draw.choice(FORMS.get(name, [ARGUMENTS.get(name, {})]))] for name in chosen],
        "precision": draw.choice(["fp32", "fp32", "amp_bf16"]),
        "microbatch_size": draw.choice([None, None, 3, 4]),
        "grad_clip_norm": draw.choice([None, 0.5]),
        "optimizer": optimizer,
        "scheduler": "none" if optimizer == "muon and adamw" else draw.choice([*SCHEDULERS][duration[-2:] != "ba" :]),
        "scheduled": draw.choice(["1ba", "2ba", "1ep"]),
        "metrics": metrics,
        "eval_interval": draw.choice(["1ep", "3ba", "2ep", "11sp", *(["0.3dur"] if duration.endswith("ba") else [])]),
        "max_duration": duration,
        "save_interval": draw.choice(["1ba", "1ba", "2ba", "1ep", "11sp"]),
        "batch_size": draw.choice([5, 7, 8]),
        "drop_last": draw.random() < 0.3,
        "data": loader,
        "evaluated": evaluated,
        "callbacks": draw.sample(CALLBACKS if metrics != "none" else CALLBACKS[:-1], draw.randrange(3)),
        "stops": [[draw.choice(STOPS), draw.choice([1, 2, 3, 4, 5, 6, 8]), draw.random() < 0.7] for _ in PHASES[2:]],
        "seed": draw.randrange(1000),
    }


class Journal(LoggerDestination):
    """Keeps all that is logged and a digest of each batch as it was loaded; both continue in a resumed run."""

    def __init__(self):
        self.lines = []
        self.batches = []

    def log_metrics(self, metrics, step):
        self.lines.append(f"{step} {sorted((name, value) for name, value in metrics.items() if name[:5] != 'time/')}")

    def state_dict(self):
        return {"lines": list(self.lines), "batches": list(self.batches)}

    def load_state_dict(self, state):
        self.lines, self.batches = list(state["lines"]), list(state["batches"])


class Watch:
    """Shows each batch to a journal before any algorithm gets it."""

    def __init__(self, journal):
        self._journal = journal

    @hookimpl(wrapper=True)
    def after_dataloader(self, state):
        self._journal.batches.append(digest(state.batch))
        return (yield)


def digest(value):
    found = hashlib.sha256()
    _add(value, found)
    return found.hexdigest()


def _add(value, found):
    """Add the bits of a tree of tensors and values."""
    if isinstance(value, torch.Tensor):
        found.update(f"{value.dtype}{tuple(value.shape)}".encode())
        found.update(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, Mapping):
        found.update(b"{")
        for key in value:
            found.update(repr(key).encode())
            if not str(key).endswith("_s"):  # seconds
                _add(value[key], found)
    elif isinstance(value, (list, tuple)):
        found.update(b"[")
        for item in value:
            _add(item, found)
        found.update(b"]")
    elif isinstance(value, np.ndarray):
        found.update(value.tobytes())
    else:
        found.update(repr(value).encode())


def trainer_of(settings, folder, stop, **begin):
    layers = list(digits_net())
    layers.insert(-3, nn.Dropout(0.3))
    parts = tuple(torch.cat(each)[:ROWS] for each in zip(*BATCHES[:1], strict=True))
    held_out = tuple(part[:9] for part in BATCHES[-1])
    size, journal, load = settings["batch_size"], Journal(), Registry.scan().load
    loader = loader_of(settings["data"], parts, size, drop_last=settings["drop_last"])
    # A training in batches has a length in epochs only where the loader has one.
    scheduled = settings["scheduled"] if length_of(loader) is not None else "1ba"
    # Ranks can't deal what is not read by index: each then has rows of its own.
    given = [settings["data"], *settings["evaluated"]]
    by_index = all(each["kind"] in BY_INDEX and each["sampler"] != "distributed" for each in given)
    evaluated = [loader_of(each, held_out, 4, drop_last=False) for each in settings["evaluated"]]
    stops = [] if stop is None else [Stop(stop[0], stop[1], pauses=stop[2])]
    callbacks = [*stops, *((name, dict(given)) for name, given in settings["callbacks"])]
    made = Trainer(
        nn.Sequential(*layers),
        loader,
        parallel="auto" if by_index or "RANK" not in os.environ else DDP(data="local"),
        loss_fn=nn.CrossEntropyLoss(),
        optimizers=OPTIMIZERS[settings["optimizer"]],
        schedulers=() if settings["scheduler"] == "none" else (SCHEDULERS[settings["scheduler"]], scheduled),
        metrics=METRICS[settings["metrics"]](),
        eval_dataloader={f"eval{place}": each for place, each in enumerate(evaluated)},
        algorithms=[
            load("algorithms", name)(**given, **IN_PYTHON.get(name, {})) for name, given in settings["algorithms"]
        ],
        callbacks=[*callbacks, CheckpointSaver(folder, settings["save_interval"], keep_last=None)],
        loggers=[journal],
        progress_bar=False,
        device="cpu",
        **{name: settings[name] for name in AS_THEY_ARE},
        **begin,
    )
    made.engine.host.register(Watch(journal))
    return made, journal


AS_THEY_ARE = ("precision", "microbatch_size", "grad_clip_norm", "eval_interval", "max_duration")


def parts_of(made, journal):
    """Return everything that a run has produced, each part as a digest or in readable form."""
    state = made.state
    return {
        "weights": digest(dict(state.model.state_dict())),
        "optimizers": digest([optimizer.state_dict() for optimizer in state.optimizers]),
        "schedulers": digest([scheduler.get_last_lr() for scheduler in state.schedulers]),
        "algorithms": [[type(a).__name__, digest(a.state_dict())] for a in state.algorithms],
        "metrics": repr(sorted(state.metrics.items())),
        "results": repr(state.results.to_json()),
        "clock": repr(state.timestamp._replace(elapsed_s=0.0, elapsed_s_in_epoch=0.0)),
        "torch's generator": digest(torch.get_rng_state()),
        "Python's generator": digest(random.getstate()),
        "NumPy's generator": digest(np.random.get_state()),
        "batches": journal.batches,
        "logged": journal.lines,
    }


def run(phase, number, folder):
    settings = settings_of(number)
    stops = dict(zip(PHASES[1:], settings["stops"], strict=False))
    for seed in (torch.manual_seed, random.seed, np.random.seed):  # a new process draws from elsewhere
        seed(number + 1000 * PHASES.index(phase))
    place = folder / ("whole" if phase == "whole" else "parts")
    made, journal = trainer_of(settings, place, stops.get(phase), seed=settings["seed"], autoresume=True)
    with made, contextlib.suppress(CutError):
        made.fit()
    return {"settings": settings, "parts": parts_of(made, journal)}


def run_all(phase, root, numbers):
    """Run a phase of all these draws."""
    for number in numbers:
        folder = root / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            result = run(phase, number, folder)
        except Exception:  # noqa: BLE001  the other draws are tried all the same
            result = {"error": f"{settings_of(number)}\n{traceback.format_exc()}"}
        if not int(os.environ.get("RANK", "0")):
            (folder / f"{phase}.json").write_text(json.dumps(result, default=repr))  # a function among the settings


def difference(folder):
    """Return what a draw raised, or how its resumed run differs from the whole one; None: not at all."""
    runs = {phase: json.loads((folder / f"{phase}.json").read_text()) for phase in PHASES}
    for phase, found in runs.items():
        if "error" in found:
            return f"{phase}: {found['error']}"
    whole, parts = (runs[phase]["parts"] for phase in ("whole", "again"))
    differing = {name: (part, parts[name]) for name, part in whole.items() if parts[name] != part}
    return f"{differing}; settings: {runs['whole']['settings']}" if differing else None


def start(size, *given):
    """Run a phase in this process, or on so many ranks."""
    if size == 1:
        run_all(*given)
    else:
        here = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "monitor_interval": 0.1}
        elastic_launch(LaunchConfig(1, 1, size, start_method="fork", max_restarts=0, **here), run_all)(*given)


def main(size, root, *numbers):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    torch.optim.SGD([torch.zeros(1)])  # it imports the compiler
    gc.freeze()  # else each process copies it all at its end
    for phase in PHASES:
        pid = os.fork()
        if not pid:
            code = 1
            try:
                start(int(size), phase, Path(root), [*map(int, numbers)])
                code = 0
            except BaseException:  # noqa: BLE001  nobody else would tell it
                traceback.print_exc()
            sys.stderr.flush()
            os._exit(code)
        if os.waitpid(pid, 0)[1]:
            sys.exit(f"the phase {phase!r} has died")
    differences = {number: difference(Path(root) / number) for number in numbers}
    Path(root, "differences.json").write_text(json.dumps(differences, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
