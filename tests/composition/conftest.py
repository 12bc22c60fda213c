"""A net with everything that any of the algorithms looks for, real data, and two epochs of training."""

import runpy
from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, default_collate

from engine_core import Trainer
from engine_core.algorithm import algorithm_metadata

DOCS = Path(__file__).parents[2] / "docs"
_PAIRS = runpy.run_path(str(DOCS / "pairs.py"))
NAMES, make_default, class_of = sorted(_PAIRS["algorithm_names"]()), _PAIRS["make"], _PAIRS["class_of"]


def with_rows_of_pixels(batch, rows):
    """Return a batch with images (n, 1, ...) of these rows of pixels, (n, height, width): a sequence of rows."""
    return (rows.unflatten(1, (1, -1)), *batch[1:])


# With these, each has something to do in two epochs of a small net; all others act with their defaults.
ARGUMENTS = {
    "blurpool": {"min_channels": 1},
    "squeeze_excite": {"min_channels": 1, "latent_channels": 4},
    "selective_backprop": {"start": 0, "end": 1, "scale_factor": 1, "interrupt": 0},
    "swa": {"start": 0.3},
    "zclip": {"z_threshold": 0.5, "warmup": 2},
    "layer_freezing": {"start": 0.2, "level": 0.5},
    "ema": {"decay": 0.9},
    "progressive_resizing": {"initial_scale": 0.5, "size_increment": 2},
    "activation_checkpointing": {"blocks": ["BasicBlock"]},
    "compile": {"blocks": ["Linear"], "backend": "eager"},  # all of the net would take seconds
    "sequence_warmup": {"duration": "1dur", "min_seq_length": 4, "step_size": 2},
}
IN_PYTHON = {
    "sequence_warmup": {"keys": [(lambda batch: batch[0].flatten(1, 2), with_rows_of_pixels)]},
    "curriculum": {"difficulty": lambda dataset: [place * 7 % 11 for place in range(len(dataset))]},
}
"""Arguments that are not in a run's settings, since JSON does not have them."""
# Variants that change something else than the defaults do, under their own names.
VARIANTS = {
    "mixup of losses": ("mixup", {"interpolate_loss": True}),
    "cutmix of losses": ("cutmix", {"interpolate_loss": True}),
    "selective_backprop by carried losses": ("selective_backprop", {"scorer": "carried", "index_key": 2}),
    "progressive_resizing by crops": ("progressive_resizing", {"mode": "crop"}),
}
EPOCHS = 2


def pytest_collection_modifyitems(items):
    """Let batches have ids, which few of the algorithms read, and sizes and blocks that are not compiled once."""
    ignored = [
        ":engine_core.errors.UnreadItemWarning",
        "compile. (batch .* compiled again|nothing was compiled):UserWarning",
        "The .grad attribute of a Tensor:UserWarning",  # torch's own, in its compiler
    ]
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            for message in ignored:
                item.add_marker(pytest.mark.filterwarnings(f"ignore:{message}"))


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)


class BasicBlock(nn.Module):
    """A residual block."""

    def __init__(self, channels):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)

    def forward(self, x):
        return x + F.relu(self.norm(self.conv(x)))


class Places(nn.Module):
    """Adds to each feature what a norm makes of an embedding of its place, modulo 4."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm1 = nn.Embedding(4, 8), nn.LayerNorm(8)

    def forward(self, x):
        places = torch.arange(x.shape[1], device=x.device) % 4
        return x + self.norm1(self.embed(places.expand(x.shape)))[..., 0]


def digits_net():
    """Strided convolutions, a max-pool, residual blocks, a layer norm, a head, an embedding; takes any size."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.MaxPool2d(2),
        nn.Sequential(BasicBlock(8), BasicBlock(8)),
        nn.Conv2d(8, 8, 3, stride=2, padding=1),
        BasicBlock(8),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.LayerNorm(32),
        nn.Linear(32, 16),
        nn.ReLU(),
        nn.Linear(16, 10),
        Places(),
    )


def _batches():
    """Images, labels and the ids of the examples."""
    data = load_digits()
    images = torch.tensor(data.images[:160], dtype=torch.float32)[:, None] / 16
    parts = images, torch.tensor(data.target[:160]), torch.arange(160)
    return list(zip(*(part.split(32) for part in parts), strict=True))


BATCHES = _batches()
EVALUATION = BATCHES[-1:]


def make(name):
    """Return an algorithm, or a variant of it, with arguments under which it acts."""
    name, given = VARIANTS.get(name, (name, {}))
    return class_of(name)(**{**ARGUMENTS.get(name, {}), **IN_PYTHON.get(name, {}), **given})


def data_for(algorithms):
    """Return the batches, or a loader of them by index for an algorithm that gives their order."""
    if not any("epoch_order" in algorithm_metadata(each).needs for each in algorithms):
        return BATCHES[:-1]
    rows = TensorDataset(*map(torch.cat, zip(*BATCHES[:-1], strict=True)))
    return DataLoader(rows, 32, collate_fn=lambda found: tuple(default_collate(found)))


def trainer_of(algorithms, **options):
    """Return a trainer for two epochs on digits, with an evaluation after each."""
    algorithms = list(algorithms)
    model = digits_net()
    given = {
        "loss_fn": nn.CrossEntropyLoss(),
        "optimizers": torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        "eval_dataloader": EVALUATION,
        "max_duration": f"{EPOCHS}ep",
        "seed": 3,
        "progress_bar": False,
        "device": "cpu",
        **options,
    }
    return Trainer(model, data_for(algorithms), algorithms=algorithms, **given)


def weights(trainer):
    """Return what training has left, parameters and buffers."""
    assert trainer.state.model is not None
    return {name: value.detach().clone() for name, value in trainer.state.model.state_dict().items()}
