"""On handwritten digits the penalty makes the loss less steep in the inputs, as its paper says."""

from typing import Any

import pytest
import torch
from optim_parts import make_trainer
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from optim_plugin import GradientPenalty


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    data: Any = load_digits()
    return torch.tensor(data.data / 16, dtype=torch.float32), torch.tensor(data.target)


def trained(algorithms: Any) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    x, y = digits()
    data = list(zip(x[:1280].split(64), y[:1280].split(64), strict=True))
    with make_trainer(algorithms, model=model, data=data, max_duration="40ep") as trainer:
        trainer.fit()
    return model


def steepness_and_accuracy(model: nn.Module) -> tuple[float, float]:
    """Return the mean norm of the gradient of a row's own loss by the row, and the accuracy, on rows held out."""
    x, y = (part[1280:] for part in digits())
    x.requires_grad_()
    outputs = model(x)
    (gradient,) = torch.autograd.grad(F.cross_entropy(outputs, y, reduction="sum"), x)
    return gradient.norm(dim=1).mean().item(), (outputs.argmax(1) == y).float().mean().item()


@pytest.mark.full
def test_gradients_by_inputs_are_smaller_at_the_same_accuracy() -> None:
    """Over eleven seeds the ratio is 0.84 to 0.90, and the gain of accuracy -0.2 to 1.6 points."""
    plain, penalised = (steepness_and_accuracy(trained(a)) for a in ((), GradientPenalty(weight=0.3)))
    assert penalised[0] / plain[0] < 0.93
    assert penalised[1] - plain[1] > -0.01
