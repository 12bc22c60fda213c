"""On handwritten digits SAM ends where the loss is flatter, as its paper says."""

from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from engine_core import Trainer
from optim_plugin import SAM


def digits() -> list[tuple[torch.Tensor, torch.Tensor]]:
    data: Any = load_digits()
    x, y = torch.tensor(data.data / 16, dtype=torch.float32), torch.tensor(data.target)
    return list(zip(x[:640].split(64), y[:640].split(64), strict=True))


def squared_error(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the squared distance to the corner of the class; it does not flatten as it is learned."""
    return (outputs - F.one_hot(targets, 10)).square().sum(1).mean()


def trained(algorithms: Any, seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    settings: dict[str, Any] = {
        "max_duration": "30ep",
        "loss_fn": squared_error,
        "optimizers": torch.optim.SGD(model.parameters(), lr=0.1),
        "schedulers": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30),
    }
    with Trainer(model, digits(), algorithms=algorithms, device="cpu", seed=1, progress_bar=False, **settings) as run:
        run.fit()
    return model


def loss_up_the_slope(model: nn.Sequential, rho: float) -> tuple[float, float]:
    """Return the loss on all rows at the weights, and `rho` up the slope."""
    x, y = (torch.cat(parts) for parts in zip(*digits(), strict=True))
    model.zero_grad()
    loss = squared_error(model(x), y)
    loss.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.cat([g.flatten() for g in gradients]).norm()
    with torch.no_grad():
        for p, g in zip(model.parameters(), gradients, strict=True):
            p.add_(rho * g / norm)
        return loss.item(), squared_error(model(x), y).item()


@pytest.mark.full
def test_the_loss_around_where_training_ends_is_lower() -> None:
    """The means of three seeds are 0.64 and 0.28; of twelve, each by itself, they are 0.53 to 0.77 and 0.20 to 0.38."""
    ups, rises = [], []
    for seed in range(3):
        (plain, plain_up), (loss, up) = (loss_up_the_slope(trained(a, seed), 0.5) for a in ((), SAM(rho=0.2)))
        assert max(plain, loss) < 0.5  # both have learned: it starts near 1
        ups.append(up / plain_up)
        rises.append((up - loss) / (plain_up - plain))
    assert sum(ups) / 3 < 0.82
    assert sum(rises) / 3 < 0.64
