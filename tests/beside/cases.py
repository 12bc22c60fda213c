"""What each trainer runs: a net, data, the 36 algorithms of this repository; and what our Trainer makes of them."""

from __future__ import annotations

import functools
import inspect
import runpy
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from engine_core import Event, Trainer
from engine_core.batch import get_item, set_item
from engine_core.errors import UnsupportedError
from engine_core.registry import Registry
from engine_core_author.probes import at_events

ROWS, BATCH, EPOCHS, SEED = 53, 8, 2, 3
"""The last batch of an epoch has 5 rows."""
LEARNING_RATE, MOMENTUM = 0.05, 0.9
OF_LOSSES = 1e-6
"""How far evaluations may be apart: trainers add up the losses of batches in other orders."""
SB = {"start": 0, "end": 1, "interrupt": 0}
TOGETHER = {"selective_backprop": SB, "label_smoothing": {"smoothing": 0.1}, "ema": {"decay": 0.9}}


def pixels_of(batch):
    """Return the rows of pixels of images (n, 8, 8), as the places of a sequence."""
    return get_item(batch, _images_in(batch)).flatten(1, 2)


def with_pixels(batch, rows):
    """Return the batch with images of these rows of pixels."""
    return set_item(batch, _images_in(batch), rows.unflatten(1, (1, -1)))


def _images_in(batch):
    return "pixel_values" if isinstance(batch, Mapping) else 0


SEQUENCES = {"duration": "1dur", "min_seq_length": 2, "step_size": 2, "keys": [(pixels_of, with_pixels)]}
CASES = {
    "none": {},
    "activation_checkpointing": {"activation_checkpointing": {"blocks": ["BasicBlock"]}},
    "blurpool": {"blurpool": {"min_channels": 1}},
    "channels_last": {"channels_last": {}},
    "compile": {"compile": {"backend": "eager"}},
    "curriculum": {"curriculum": {"difficulty": range(ROWS)}},
    "cutmix": {"cutmix": {}},
    "cutout": {"cutout": {}},
    "alternating_flip": {"alternating_flip": {"index_key": 2}},
    "col_out": {"col_out": {}},
    "rand_augment": {"rand_augment": {}},
    "random_shift": {"random_shift": {}},
    "test_time_augmentation": {"test_time_augmentation": {}},
    "ema": {"ema": {"decay": 0.9}},
    "fused_layernorm": {"fused_layernorm": {}},
    "gated_linear_units": {"gated_linear_units": {}},
    "gradient_clipping": {"gradient_clipping": {}},
    "gradient_penalty": {"gradient_penalty": {"weight": 0.01}},
    "info_batch": {"info_batch": {}},
    "label_smoothing": {"label_smoothing": {}},
    "lawa": {"lawa": {}},
    "layer_freezing": {"layer_freezing": {"start": 0.2, "level": 0.5}},
    "layer_stacking": {"layer_stacking": {}},
    "logit_soft_cap": {"logit_soft_cap": {"cap": 2}},
    "lookahead": {"lookahead": {"k": 3}},
    "mixup": {"mixup": {}},
    "ngram_embedding": {"ngram_embedding": {}},
    "progressive_resizing": {"progressive_resizing": {"mode": "crop", "size_increment": 2}},
    "sam": {"sam": {}},
    "selective_backprop": {"selective_backprop": SB},
    "sequence_warmup": {"sequence_warmup": {**SEQUENCES, "truncate": True}},
    "squeeze_excite": {"squeeze_excite": {"min_channels": 1, "latent_channels": 4}},
    "stochastic_depth": {"stochastic_depth": {"drop_rate": 0.5}},
    "swa": {"swa": {"start": 0.3}},
    "token_shift": {"token_shift": {}},
    "whitened_stem": {"whitened_stem": {}},
    "zclip": {"zclip": {"z_threshold": 0.5, "warmup": 2}},
    "carried": {"selective_backprop": {**SB, "scorer": "carried", "index_key": 2}},
    "together": TOGETHER,
}
"""The algorithms of each case, by name, with their arguments."""
ALONE = [name for name in CASES if name not in ("none", "carried", "together")]
"""The 18."""


class BasicBlock(nn.Module):
    """A residual block whose rows don't see each other."""

    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        return x + F.relu(self.conv(x))


class Places(nn.Module):
    """Adds to each feature what a norm makes of an embedding of its place, modulo 4."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm1 = nn.Embedding(4, 8), nn.LayerNorm(8)

    def forward(self, x):
        places = torch.arange(x.shape[1], device=x.device) % 4
        return x + self.norm1(self.embed(places.expand(x.shape)))[..., 0]


def make_net():
    """Return a net with something for each of the algorithms; the same each time."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.MaxPool2d(2),
        nn.Sequential(BasicBlock(8), BasicBlock(8)),
        nn.Conv2d(8, 8, 3, stride=2, padding=1),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.LayerNorm(32),
        nn.Linear(32, 16),
        nn.ReLU(),
        nn.Linear(16, 10),
        Places(),
    )


def make_data(*, rows=ROWS):
    """Return images (1, 8, 8), digits, and the number of each row."""
    digits = load_digits()
    images = torch.tensor(digits.images[:rows], dtype=torch.float32)[:, None] / 16
    return TensorDataset(images, torch.tensor(digits.target[:rows]), torch.arange(rows))


def make_loaders(*, batch=BATCH, rows=ROWS):
    """Return one for training, in a fixed order, and one for evaluation, of other rows."""
    whole = make_data(rows=ROWS + 20)
    train, held = torch.utils.data.Subset(whole, range(rows)), torch.utils.data.Subset(whole, range(ROWS, ROWS + 20))
    return DataLoader(train, batch_size=batch), DataLoader(held, batch_size=8)


def make_algorithms(case, keys=None):
    """Return those of a case.

    Args:
        keys: arguments such as `input_key`, given to each algorithm that takes them.
    """
    registry, found = Registry.scan(), []
    for name, arguments in CASES[case].items():
        kind = registry.load("algorithms", name)
        taken = {key: value for key, value in (keys or {}).items() if key in inspect.signature(kind).parameters}
        if "index_key" not in arguments:
            taken.pop("index_key", None)
        found.append(kind(**{**arguments, **taken}))
    return found


class Words(nn.Module):
    """Predicts a class for each of a few places."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(4, 5)

    def forward(self, x):
        return self.net(x).transpose(1, 2)


def make_words(rows=24):
    """Return rows of 6 places, of which 1 to 6 count, in blocks of 4 with as many."""
    generator = torch.Generator().manual_seed(0)
    counts = torch.arange(rows)[:, None] // 4 % 6 + 1
    targets = torch.randint(5, (rows, 6), generator=generator)
    return TensorDataset(
        torch.randn(rows, 6, 4, generator=generator), targets.where(torch.arange(6) < counts, -100), torch.arange(rows)
    )


def weights_of_words(batch):
    """Return what our Trainer makes of an epoch in batches of so many rows: weights, clock, losses."""
    net, losses = Words(), []
    with Trainer(
        net,
        DataLoader(make_words(), batch_size=batch),
        loss_fn=nn.CrossEntropyLoss(),
        optimizers=torch.optim.SGD(net.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM),
        max_duration="1ep",
        callbacks=[at_events([Event.BATCH_END], lambda _, state: losses.append(state.loss.item()))],
        device="cpu",
        progress_bar=False,
    ) as trainer:
        trainer.fit()
        return net.net.weight.flatten().tolist(), tuple(trainer.state.timestamp[:3]), losses


class Ended(NamedTuple):
    """What a run left.

    Args:
        weights: of the model, by their names in `make_net()`.
        averages: of EMA or SWA, by the same names; empty without an average.
        clock: epoch, batch, sample, batch and sample of the epoch.
        losses: of each evaluation, the mean over its rows.
    """

    weights: dict[str, torch.Tensor]
    averages: dict[str, torch.Tensor]
    clock: tuple[int, ...]
    losses: list[float]


def ended(model, state, losses, prefix=""):
    """Return what a run left.

    Args:
        prefix: of the names of `make_net()` in the model that was trained.
    """
    averages = {}
    for algorithm in state.algorithms:
        averages |= getattr(algorithm, "averaged_state_dict", dict)() or {}
    cut = [{name.removeprefix(prefix): v.clone() for name, v in d.items()} for d in (model.state_dict(), averages)]
    return Ended(cut[0], cut[1], tuple(state.timestamp[:3] + state.timestamp[4:6]), [*losses])


def train_ours(case, **settings):
    """Train a case with our Trainer.

    Args:
        settings: arguments of the Trainer; `batch` is that of the loader, `rows` are those that it trains on.
    """
    net, losses = make_net(), []
    train, held = make_loaders(batch=settings.pop("batch", BATCH), rows=settings.pop("rows", ROWS))
    given = {
        "algorithms": make_algorithms(case),
        "callbacks": [at_events([Event.EVAL_END], lambda _, state: losses.append(state.metrics["eval/loss"]))],
        "device": "cpu",
        "max_duration": f"{EPOCHS}ep",
        "optimizers": torch.optim.SGD(net.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM),
        **settings,
    }
    with Trainer(
        net, train, eval_dataloader=held, loss_fn=nn.CrossEntropyLoss(), seed=SEED, progress_bar=False, **given
    ) as trainer:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "BatchNorm .* each microbatch", UserWarning)
            trainer.fit()
        return ended(net, trainer.state, losses)


@functools.cache
def ours(case, **sizes):
    """Train a case with our Trainer once for all that is compared with it; return what it left, not to be changed."""
    return train_ours(case, **sizes)


def differences(one, other):
    """Return what differs, in words; weights and averages are compared to the bit, losses to rounding."""
    found = []
    for what in ("weights", "averages"):
        own, others = getattr(one, what), getattr(other, what)
        if [*own] != [*others]:
            found.append(f"{what}: {[*own]} and {[*others]}")
            continue
        far = {name: (own[name] - others[name]).abs().max().item() for name in own if own[name].numel()}
        found += [f"{what} of {name} by {by:.0e}" for name, by in far.items() if by or by != by]  # noqa: PLR0124  NaN
    if one.clock != other.clock:
        found.append(f"clock: {one.clock} and {other.clock}")
    if len(one.losses) != len(other.losses):
        found.append(f"{len(one.losses)} and {len(other.losses)} evaluations")
    pairs = enumerate(zip(one.losses, other.losses, strict=False))
    return found + [f"evaluation {n}: {a} and {b}" for n, (a, b) in pairs if abs(a - b) > OF_LOSSES * abs(a)]


def cell_of(train, case, reason=None, **sizes):
    """Return what a cell of the table says: `equal`, `refused: REASON`, or `differs: REASON` where one is given.

    Args:
        train: trains the case with a library.
        sizes: of our run that it is compared with.
    """
    try:
        apart = differences(train(), ours(case, **sizes))
    except UnsupportedError as error:
        return f"refused: {error}"
    assert bool(apart) == (reason is not None), apart or f"equal in spite of: {reason}"
    return "equal" if reason is None else f"differs: {reason}"


def check_page(library, runs):
    """Assert that docs/reference/trainers.md shows the cells that the runs of a library find.

    Args:
        runs: its module of runs; `python docs/adapters.py` writes the page.
    """
    writer = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "adapters.py"))
    (shown,) = writer["marked"](library).findall(writer["FILE"].read_text(encoding="utf-8"))
    assert shown == writer["section"](library, runs), "run: python docs/adapters.py"
