"""What Hugging Face's Trainer makes of the cases, and the cells of its table."""

import functools
import tempfile

import torch
import transformers
from torch import nn
from torch.utils.data import Dataset, SequentialSampler

from engine_core import Callback
from engine_core_transformers import EngineTrainer

from .cases import (
    BATCH,
    EPOCHS,
    LEARNING_RATE,
    MOMENTUM,
    ROWS,
    SEED,
    Words,
    cell_of,
    ended,
    make_algorithms,
    make_data,
    make_net,
    make_words,
)

STEP, BLACK_BOX, ACCUMULATION = SETTINGS = ("step", "black box", "accumulation")
KEYS = {"input_key": "pixel_values", "target_key": "labels", "index_key": "index"}
_BY_BATCH = "AFTER_DATALOADER fires for each batch of the loader, and our Trainer's for all rows of the step: it "
DIFFERS = {
    (ACCUMULATION, "cutout"): _BY_BATCH + "draws for each batch",
    (ACCUMULATION, "col_out"): _BY_BATCH + "draws for each batch",
    (ACCUMULATION, "rand_augment"): _BY_BATCH + "draws for each batch",
    (ACCUMULATION, "random_shift"): _BY_BATCH + "draws for each batch",
    (ACCUMULATION, "progressive_resizing"): _BY_BATCH + "draws for each batch",
    (ACCUMULATION, "selective_backprop"): _BY_BATCH + "chooses among the rows of each batch",
    (ACCUMULATION, "together"): _BY_BATCH + "chooses among the rows of each batch (selective_backprop)",
}
"""By setting and case, why it does not do what our Trainer does."""
ACCUMULATED = 2


class Net(nn.Module):
    """The net of the cases as models of transformers are: called by keywords, with its own loss if it gets labels."""

    def __init__(self):
        super().__init__()
        self.net = make_net()

    def forward(self, pixel_values, labels=None, index=None):
        logits = self.net(pixel_values)
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Digits(Dataset):
    """Rows of the cases, each a dict."""

    def __init__(self, start=0, stop=ROWS):
        data = make_data(rows=stop)
        self._rows = [data[number] for number in range(start, stop)]

    def __len__(self):
        return len(self._rows)

    def __getitem__(self, number):
        return dict(zip(("pixel_values", "labels", "index"), self._rows[number], strict=True))


class InOrder:
    """A mixin that shuffles nothing."""

    def _get_train_sampler(self, *_):
        return SequentialSampler(self.train_dataset)


class Trainer(InOrder, EngineTrainer):
    """The Trainer that is tested."""


class Losses(Callback):
    """Keeps the losses of evaluations."""

    def __init__(self):
        self.losses = []

    def eval_end(self, state, logger):
        self.losses.append(state.metrics["eval_loss"])


def arguments(folder, **given):
    """Return those of all runs, with others in their place."""
    own = {
        "output_dir": str(folder),
        "num_train_epochs": EPOCHS,
        "per_device_train_batch_size": BATCH,
        "per_device_eval_batch_size": 8,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "seed": SEED,
        "eval_strategy": "epoch",
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
    }
    return transformers.TrainingArguments(**{**own, **given})


def make_trainer(folder, algorithms=(), *, kind=Trainer, args=None, **given):
    """Return a trainer of the net with momentum SGD.

    Args:
        args: TrainingArguments in place of those of all runs.
    """
    model = given.pop("model", None) or Net()
    own = {
        "model": model,
        "train_dataset": Digits(),
        "eval_dataset": Digits(ROWS, ROWS + 20),
        "optimizers": (torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM), None),
        "algorithms": algorithms,
        "loss_fn": nn.CrossEntropyLoss(),
    }
    return kind(args=arguments(folder, **(args or {})), **{**own, **given})


def train_words(folder, steps=1, **args):
    """Train on the words in batches of 4; return the weights, the clock, and the mean loss that was logged."""

    class Logits(Words):
        def forward(self, x):
            return {"logits": super().forward(x)}

    net, rows = Logits(), make_words()
    given = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": steps, "num_train_epochs": 1, **args}
    trainer = make_trainer(
        folder,
        model=net,
        args={**given, "eval_strategy": "no", "logging_strategy": "epoch"},
        train_dataset=[dict(zip(("x", "labels"), row[:2], strict=True)) for row in rows],
    )
    trainer.train()
    logged = next(log["loss"] for log in trainer.state.log_history if "loss" in log)
    return net.net.weight.flatten().tolist(), tuple(trainer.engine_state.timestamp[:3]), logged


def left_by(trainer, losses):
    """Return what a run left."""
    return ended(trainer.model, trainer.engine_state, losses.losses, prefix="net.")


def train(case, setting=STEP):
    """Train a case.

    Raises:
        UnsupportedError: (an EngineError) if the setting can't do it.
    """
    given = {"loss_fn": None} if setting == BLACK_BOX else {}
    args = {"gradient_accumulation_steps": ACCUMULATED} if setting == ACCUMULATION else {}
    args["remove_unused_columns"] = case != "carried"  # `index` is not for the model
    with tempfile.TemporaryDirectory() as folder:
        losses = Losses()
        algorithms = make_algorithms(case, keys=KEYS)
        trainer = make_trainer(folder, algorithms, args=args, engine_callbacks=[losses], **given)
        trainer.train()
        return left_by(trainer, losses)


@functools.cache
def cell(setting, case):
    """Run one cell of the table."""
    sizes = {"batch": ACCUMULATED * BATCH, "microbatch_size": BATCH} if setting == ACCUMULATION else {}
    return cell_of(lambda: train(case, setting), case, DIFFERS.get((setting, case)), **sizes)
