"""What Lightning makes of each case, and what a cell of the docs' table says of it."""

import functools
import logging

import lightning.pytorch as pl
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from engine_core_lightning import EngineCallback

from .cases import BATCH, EPOCHS, LEARNING_RATE, MOMENTUM, SEED, cell_of, ended, make_algorithms, make_loaders, make_net

ITS_WARNINGS = [
    pytest.mark.filterwarnings(f"ignore:{text}")
    for text in (
        ".isinstance.treespec, LeafSpec.. is deprecated:FutureWarning",  # its use of torch 2.13
        "The '[a-z_]*_dataloader' does not have many workers",
        "The number of training batches .* is smaller than the logging interval",
    )
]
"""Marks that ignore what Lightning says of itself and of small runs."""
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

SETTINGS = ("step", "black box", "accumulation")


class Digits(pl.LightningModule):
    """A LightningModule as its users write it; it knows nothing of engine-core."""

    def __init__(self):
        super().__init__()
        self.net = make_net()
        self.criterion = nn.CrossEntropyLoss()
        self.losses = []

    def training_step(self, batch, batch_idx):
        return self.criterion(self.net(batch[0]), batch[1])

    def on_validation_start(self):
        self.total, self.rows = 0.0, 0

    def validation_step(self, batch, batch_idx):
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.log("val_loss", loss)
        self.total, self.rows = self.total + loss.item() * len(batch[1]), self.rows + len(batch[1])

    def on_validation_end(self):
        if not self.trainer.sanity_checking:
            self.losses.append(self.total / self.rows)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)


class Whole(Digits):
    """One that is called itself, so that it is the model."""

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        return self.criterion(self(batch[0]), batch[1])


def make_trainer(callbacks=(), library=pl, **settings):
    """Return a quiet Trainer on one CPU."""
    given = {
        "max_epochs": EPOCHS,
        "logger": False,
        "enable_checkpointing": False,
        "num_sanity_val_steps": 0,
        "accelerator": "cpu",
        "devices": 1,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        **settings,
    }
    return library.Trainer(callbacks=[*callbacks], **given)


def make_callback(case, **arguments):
    """Return the callback of a case, for `Digits`."""
    given = {"model": "net", "loss_fn": "criterion", "seed": SEED, **arguments}
    return EngineCallback(make_algorithms(case), **given)


EVEN_ROWS, PARTS = 48, 2
"""Under accumulation each step has as many microbatches: Lightning divides by their number, our Trainer by rows."""
EACH_MICROBATCH = "each microbatch comes from the loader by itself, so {} for it; our Trainer's are cut from a batch"
DIFFERS = {
    ("accumulation", "cutout"): EACH_MICROBATCH.format("places are drawn"),
    ("accumulation", "col_out"): EACH_MICROBATCH.format("lines are drawn"),
    ("accumulation", "rand_augment"): EACH_MICROBATCH.format("operations are drawn"),
    ("accumulation", "random_shift"): EACH_MICROBATCH.format("shifts are drawn"),
    ("accumulation", "progressive_resizing"): EACH_MICROBATCH.format("crops are drawn"),
    ("accumulation", "selective_backprop"): EACH_MICROBATCH.format("rows are chosen"),
    ("accumulation", "together"): EACH_MICROBATCH.format("rows are chosen"),
}
"""The cells whose weights differ from our Trainer's, with the reason."""


def train(case, setting="step"):
    """Train a case with Lightning.

    Raises:
        UnsupportedError: if the adapter refuses it, before anything changed.
    """
    module, black_box = Digits(), {"loss_fn": None} if setting == "black box" else {}
    callback = make_callback(case, **black_box)
    accumulates = setting == "accumulation"
    settings = {"accumulate_grad_batches": PARTS} if accumulates else {}
    loaders = make_loaders(batch=BATCH // PARTS, rows=EVEN_ROWS) if accumulates else make_loaders()
    make_trainer([callback], **settings).fit(module, *loaders)
    return ended(module.net, callback.state, module.losses)


@functools.cache
def cell(setting, case):
    """Run one cell of the table."""
    sizes = {"rows": EVEN_ROWS, "microbatch_size": BATCH // PARTS} if setting == "accumulation" else {}
    return cell_of(lambda: train(case, setting), case, DIFFERS.get((setting, case)), **sizes)
