"""One training run: a case, a method, a length and a seed, through the Trainer, measured."""

from __future__ import annotations

import functools
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from counting import counting
from data import DEBIAN, FOLDS, Batches, Split, first_rows, load_digits, load_fashion, with_noise
from methods import METHODS, Method
from nets import conv_net
from torch import nn
from torch.nn import functional as F

from engine_core import Trainer
from engine_core.errors import UnreadItemWarning

WARM_UP = 0.05


class Case(NamedTuple):
    """Data, batch size, and how long the methods of each kind train.

    Args:
        rows: how many rows an epoch has.
        batch: the batch size that the methods share.
        lr: the learning rate at that batch size; see `rate_factor` for others.
        lengths: in epochs, by the kind of method; below 1 or in `one_pass`: one pass over `epochs * rows` rows.
        noise: the share of the labels that is redrawn at random.
        seeds: how many, and `headline_seeds` for the methods in HEADLINE.
        methods: their names; None: all.
    """

    data: str
    rows: int
    batch: int
    lr: float
    lengths: dict[str, tuple[float, ...]]
    noise: float = 0.0
    one_pass: bool = False
    seeds: int = 3
    headline_seeds: int = 0
    methods: tuple[str, ...] | None = None

    def seeds_of(self, method: str) -> range:
        """Return the seeds of a method."""
        return range(max(self.seeds, self.headline_seeds) if method in HEADLINE else self.seeds)


UNPRUNED_END = ("carried, cdf, end .9", "carried, cdf, end .9, rate of half")
SOME = ("vanilla", "vanilla, half batch", "uniform", "composer", "carried", "carried, cdf")
MORE = (*SOME, "vanilla, quarter batch", "defaults", "stale")
LENGTHS: dict[str, tuple[float, ...]] = {"vanilla": (2, 4, 6, 8), "pruned": (4, 6, 8, 12), "variant": (4, 7, 10)}
FASHION = Case("fashion", 20_000, 128, 0.2, LENGTHS)
HEADLINE = (*SOME, "carried, rate of half", "carried, cdf, rate of half")
CASES = {
    "fashion": FASHION._replace(headline_seeds=5),
    "fashion at twice the rate": FASHION._replace(
        lr=0.4, seeds=5, methods=(*HEADLINE, "carried, end .9", *UNPRUNED_END)
    ),
    "fashion, test file": FASHION._replace(
        data="fashion tested",
        lr=0.4,
        seeds=5,
        lengths={"vanilla": (6, 8), "pruned": (8, 12), "variant": (7, 10)},
        methods=(
            *("vanilla", "vanilla, half batch", "carried", "carried, cdf", "carried, cdf, rate of half"),
            *UNPRUNED_END,
        ),
    ),
    "digits": Case("digits", 1437, 64, 0.1, {"vanilla": (2, 3, 4, 6), "pruned": (3, 4, 6, 9)}, seeds=10, methods=MORE),
    "noise": FASHION._replace(lengths={"vanilla": (4, 8), "pruned": (6, 12)}, noise=0.2, methods=SOME),
    "one-epoch": FASHION._replace(lengths={"vanilla": (0.5, 1), "pruned": (0.5, 1)}, one_pass=True, methods=SOME),
}


def rate_factor(method: Method) -> float:
    """Return the factor of the case's learning rate: the square root of the trained share of its batch size."""
    return float(method.trained**0.5)


def load(case: Case, epochs: float, seed: int, folder: Path = DEBIAN) -> Split:
    """Return the data of a run; each seed has its own fold of the digits and its own wrong labels."""
    is_fashion = case.data != "digits"
    split = load_fashion(folder, tested=case.data == "fashion tested") if is_fashion else load_digits(seed % FOLDS)
    split = first_rows(split, round(case.rows * (epochs if case.one_pass else 1)))
    return with_noise(split, case.noise, seed) if case.noise else split


def train(name: str, case: Case, epochs: float, seed: int, folder: Path = DEBIAN) -> dict[str, Any]:
    """Train a new net with the named method; return loss and accuracy on the validation set, and their cost."""
    method, split = METHODS[name], load(case, epochs, seed, folder)
    torch.manual_seed(seed)
    model = conv_net(stride=1 if case.data == "digits" else 2)
    batches = Batches(split.images, split.labels, int(method.load * case.batch), torch.Generator().manual_seed(seed))
    passes = 1 if case.one_pass else int(epochs)
    lr = case.lr * rate_factor(method)
    algorithms, callbacks = method.parts(epochs)
    with (
        Trainer(
            model,
            batches,
            max_duration=f"{passes}ep",
            loss_fn=F.cross_entropy,
            optimizers=functools.partial(torch.optim.SGD, lr=lr, momentum=0.9, nesterov=True, weight_decay=5e-4),
            schedulers=(functools.partial(decayed, steps=passes * len(batches)), "1ba"),
            algorithms=algorithms,
            callbacks=callbacks,
            device="cpu",
            seed=seed,
            progress_bar=False,
        ) as trainer,
        counting(model, tuple(split.images.shape[1:])) as counter,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", UnreadItemWarning)  # the ids, where a method remembers no examples
        started_s = time.process_time()
        trainer.fit()
        took_s = time.process_time() - started_s
    loss, accuracy = validate(model, split)
    return {
        "loss": round(loss, 5),
        "accuracy": round(accuracy, 5),
        "trained": counter.trained,
        "scored": counter.scored,
        "compute": counter.compute,
        "cpu_s": round(took_s, 3),
    }


def decayed(optimizer: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LRScheduler:
    """Return a per-step scheduler: a short linear rise, then a linear fall to zero at the end."""
    rise = max(1, round(WARM_UP * steps))
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min((i + 1) / rise, (steps - i) / (steps - rise)))


@torch.no_grad()
def validate(model: nn.Module, split: Split) -> tuple[float, float]:
    """Return the mean cross-entropy and the accuracy on the validation set."""
    model.eval()
    outputs = torch.cat([model(images) for images in split.val_images.tensor_split(20)])
    right = outputs.argmax(1) == split.val_labels
    return float(F.cross_entropy(outputs, split.val_labels)), float(right.float().mean())
