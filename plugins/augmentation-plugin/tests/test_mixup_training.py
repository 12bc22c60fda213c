"""What MixUp and CutMix do to a training on scikit-learn's digits: what their README says of it."""

from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from augmentation_plugin import CutMix, MixUp
from engine_core import Trainer


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    data = load_digits()
    return torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16, torch.tensor(data.target)


class Trained:
    """A small net after four epochs of digits: its last training loss, test accuracy and test entropy."""

    def __init__(self, algorithms: Any = ()) -> None:
        images, classes = digits()
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 10)
        )
        loader = DataLoader(TensorDataset(images[:1400], classes[:1400]), 64, shuffle=True)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        options: Any = {"loss_fn": F.cross_entropy, "optimizers": optimizer, "callbacks": self, "seed": 1}
        self.losses: list[float] = []
        with Trainer(net, loader, algorithms=algorithms, **options) as trainer:
            trainer.fit("4ep")
        self.loss = sum(self.losses[-20:]) / 20
        with torch.no_grad():
            probabilities = net(images[1400:]).softmax(1)
        self.accuracy = (probabilities.argmax(1) == classes[1400:]).float().mean().item()
        self.confidence = probabilities.max(1).values.mean().item()

    def after_loss(self, state: Any, logger: Any) -> None:
        self.losses.append(float(state.loss.detach()))


@pytest.mark.full
def test_the_training_loss_is_higher_and_the_net_less_sure_and_as_right_in_either_form() -> None:
    plain, mixup, cutmix = Trained(), Trained(MixUp(1.0)), Trained(CutMix())
    for mixed in (mixup, cutmix):
        assert mixed.loss > 1.5 * plain.loss
        assert mixed.confidence < plain.confidence
        assert mixed.accuracy > plain.accuracy - 0.03
    assert Trained(CutMix(interpolate_loss=True)).losses == pytest.approx(cutmix.losses, rel=0.02)
