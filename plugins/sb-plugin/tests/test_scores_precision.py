"""Scores are in single precision whatever autocast does, and training is not affected."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from engine_core import Objective
from sb_plugin import select_using_loss
from sb_plugin.scoring import Manner, autocast_of, score

CPU = torch.device("cpu")
X, Y = torch.randn(8, 3, 6, 6, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 4


def net(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4))


def select(model: Callable[..., Any], seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    return select_using_loss(X, Y, model, F.cross_entropy, generator=torch.Generator().manual_seed(seed))


def test_scores_are_single_precision_under_autocast() -> None:
    model, seen, mixing = net(), [], torch.randn(4, 4)

    def loss(outputs: torch.Tensor, targets: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
        seen.append(outputs.dtype)
        return F.cross_entropy(outputs @ mixing, targets, reduction=reduction)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        reduced = model(X)
        found, _ = score(Objective(loss), model, (X, Y), 0)
    assert (reduced.dtype, seen, found.dtype) == (torch.bfloat16, [torch.float32], torch.float32)
    assert torch.equal(found, F.cross_entropy(reduced.float() @ mixing, Y, reduction="none"))


def test_scores_of_a_model_in_half_precision_are_single_precision() -> None:
    found, _ = score(Objective(F.cross_entropy), net().bfloat16(), (X.bfloat16(), Y), 0)
    assert found.dtype == torch.float32


def test_training_in_the_same_autocast_block_still_gets_gradients() -> None:
    """Autocast remembers cast weights, and those made without gradients would give none."""
    model = net(nn.BatchNorm2d(4))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rows, targets = select(model)
        loss = F.cross_entropy(model(rows), targets)
    loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_autocast_remembers_nothing_of_the_scoring_forward() -> None:
    """Seen with every torch: whether what was remembered gets gradients depends on torch's version."""
    model, remembered = net(), list[bool]()
    model.register_forward_hook(lambda *_: remembered.append(torch.is_autocast_cache_enabled()))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        score(Objective(F.cross_entropy), model, (X, Y), 0)
        score(Objective(F.cross_entropy), model, (X, Y), 0, Manner(autocast=autocast_of("amp_bf16", CPU)))
        assert torch.is_autocast_cache_enabled()
    assert remembered == [False, False]
