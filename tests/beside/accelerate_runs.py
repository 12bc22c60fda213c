"""A loop with Accelerate, as the tests of its adapter run it, and the table of the 36 algorithms in it."""

import functools
from contextlib import contextmanager

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch.nn import functional as F

from engine_core import Event
from engine_core_accelerate import EngineLoop
from engine_core_author.probes import at_events

from .cases import (
    BATCH,
    EPOCHS,
    LEARNING_RATE,
    MOMENTUM,
    SEED,
    Words,
    cell_of,
    ended,
    make_algorithms,
    make_loaders,
    make_net,
    make_words,
)

SETTINGS = ("step", "accumulation")
_DRAWS = "it draws for each batch of the loader, and our Trainer once for all microbatches of a step"
_CHOOSES = "it chooses among the rows of each batch of the loader, and our Trainer among all rows of a step"
DIFFERS = {
    ("accumulation", "cutout"): _DRAWS,
    ("accumulation", "col_out"): _DRAWS,
    ("accumulation", "rand_augment"): _DRAWS,
    ("accumulation", "random_shift"): _DRAWS,
    ("accumulation", "progressive_resizing"): _DRAWS,
    ("accumulation", "selective_backprop"): _CHOOSES,
    ("accumulation", "together"): _CHOOSES,
}
"""Where a run is not that of our Trainer, by setting and case, and the reason."""


class Run:
    """What a user writes around the loop, up to `fit`.

    Args:
        case: whose algorithms, or a list of them.
        settings: of EngineLoop; `accelerator` is that, and `batch` the loaders'.
    """

    def __init__(self, case="none", **settings):
        self.accelerator = settings.pop("accelerator", None) or make_accelerator()
        self.net = settings.pop("net", None) or make_net()
        loaders = settings.pop("loaders", None) or make_loaders(batch=settings.pop("batch", BATCH))
        algorithms = make_algorithms(case) if isinstance(case, str) else case
        given = {"loss_fn": torch.nn.CrossEntropyLoss(), "max_duration": f"{EPOCHS}ep", "seed": SEED}
        self.loop = EngineLoop(self.accelerator, algorithms=algorithms, **{**given, **settings})
        self.state = self.loop.state
        self.loop.init(self.net)
        optimizer = torch.optim.SGD(self.net.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
        self.model, self.optimizer, self.loader, self.held = self.accelerator.prepare(self.net, optimizer, *loaders)
        self.losses = []

    @contextmanager
    def fit(self):
        with self.loop.fit(self.model, self.optimizer, self.loader):
            yield

    def steps(self, loader=None):
        """Train on batches, and yield the number of each when it is done."""
        for number, batch in enumerate(self.loop.batches(self.loader if loader is None else loader)):
            self.loop.gradients(batch)
            self.optimizer.step()
            yield number

    def epoch(self, loader=None):
        for _ in self.steps(loader):
            pass

    def rest(self, done):
        """Train on what is left of an epoch of which so many batches are done."""
        self.epoch(self.accelerator.skip_first_batches(self.loader, done))

    def cut(self, batches, folder=None):
        """Train on so many batches, save, and leave the epoch."""
        for number in self.steps():
            if number == batches - 1:
                if folder:
                    self.accelerator.save_state(folder)
                break

    def evaluate(self):
        with self.loop.evaluation("eval", self.held) as results:
            total = rows = 0.0
            for batch in self.held:
                total += F.cross_entropy(self.model(batch[0]), batch[1], reduction="sum").item()
                rows += len(batch[0])
            results["loss"] = total / rows
        self.losses.append(self.state.metrics["eval/loss"])

    def train(self, epochs=EPOCHS):
        """Train until so many epochs are done, with an evaluation after each."""
        with self.fit():
            while self.state.timestamp.epoch < epochs and not self.state.loop.stop_requested:
                self.epoch()
                self.evaluate()
        return self.ended()

    def ended(self):
        return ended(self.net, self.state, self.losses)


def at(event, call):
    """Return a callback that makes this call at one event."""
    return at_events([Event(event)], lambda _, state: call(state))


def make_accelerator(steps=1, **settings):
    """Return an accelerator with other settings than those before it, which are of the whole process."""
    AcceleratorState._reset_state()  # precision is of the whole process
    return Accelerator(cpu=True, gradient_accumulation_steps=steps, **settings)


def train(case, setting="step"):
    """Train a case of the table."""
    if setting == "step":
        return Run(case).train()
    return Run(case, accelerator=make_accelerator(2), loaders=make_loaders(batch=BATCH // 2, rows=EVEN)).train()


def train_words(steps=1):
    """Train on the words in batches of 4; return the weights and the clock."""
    loader = torch.utils.data.DataLoader(make_words(), batch_size=4)
    net = Words()
    run = Run(accelerator=make_accelerator(steps), loaders=(loader, loader), net=net)
    with run.fit():
        run.epoch()
    return net.net.weight.flatten().tolist(), tuple(run.state.timestamp[:3])


EVEN = 48
"""Rows of which all microbatches are alike: our Trainer cuts others of a shorter batch, which BatchNorm sees."""


@functools.cache
def cell(setting, case):
    """Run one cell of the table."""
    sizes = {} if setting == "step" else {"rows": EVEN, "microbatch_size": BATCH // 2}
    return cell_of(lambda: train(case, setting), case, DIFFERS.get((setting, case)), **sizes)
