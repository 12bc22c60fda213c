"""What the tests of augmentation-plugin share: seeds, a training on digits, the two forms of mixing."""

import pytest
import torch
from parts import trainer
from sklearn.datasets import load_digits
from torch import nn

from augmentation_plugin import CutMix, MixUp
from engine_core import Callback

BOTH = pytest.mark.parametrize("kind", [MixUp, CutMix])
FORMS = pytest.mark.parametrize(("kind", "interpolate_loss"), [(MixUp, False), (CutMix, True)])


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


class Steps(Callback):
    """Takes the loss of each step, and the sizes that the model trains on and is evaluated on."""

    def __init__(self):
        self.losses = []
        self.trained = []
        self.evaluated = set()

    def before_forward(self, state, logger):
        self.trained.append(state.batch[0].shape[-1])

    def eval_before_forward(self, state, logger):
        self.evaluated.add(state.batch[0].shape[-1])

    def after_train_batch(self, state, logger):
        self.losses.append(state.loss.item())


def digits():
    """Return images (1797, 1, 8, 8) and classes."""
    pixels, classes = load_digits(return_X_y=True)
    return torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16, torch.tensor(classes)


def train_on_digits(algorithms, *callbacks, pool=None, **settings):
    """Train a small net for images of any size on 8 batches of digits of 8 x 8 pixels."""
    x, y = (part[:512] for part in digits())
    torch.manual_seed(2)
    pool = pool or nn.AdaptiveAvgPool2d(2)
    model = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), pool, nn.Flatten(), nn.Linear(128, 10))
    steps, data = Steps(), list(zip(x.split(64), y.split(64), strict=True))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    given = {"algorithms": algorithms, "callbacks": [steps, *callbacks], "optimizers": optimizer, "seed": 3}
    with trainer(data, model, eval_dataloader=data[:1], **given, **settings) as run:
        run.fit()
    return steps, run
