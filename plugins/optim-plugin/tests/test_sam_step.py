"""SAM's step equals the hand-written one, bit for bit."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from optim_parts import make_trainer, same
from parts import batches
from torch import nn
from torch.nn import functional as F

from optim_plugin import SAM

Batch = tuple[torch.Tensor, torch.Tensor]

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
}


def make_net(*, norm: bool = True) -> nn.Sequential:
    torch.manual_seed(1)
    middle: nn.Module = nn.BatchNorm1d(8) if norm else nn.Tanh()
    return nn.Sequential(nn.Linear(4, 8), middle, nn.ReLU(), nn.Linear(8, 3))


def train(model: nn.Module, algorithms: Any, optimizers: Any, **settings: Any) -> dict[str, torch.Tensor]:
    with make_trainer(algorithms, model=model, optimizers=optimizers, **settings) as trainer:
        trainer.fit()
    return dict(model.state_dict())


def gradients_by_hand(model: nn.Module, batch: Batch, clip: float | None) -> None:
    model.zero_grad()
    F.cross_entropy(model(batch[0]), batch[1]).backward()
    if clip is not None:
        nn.utils.clip_grad_norm_(model.parameters(), clip)


def train_by_hand(
    model: nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    rho: float,
    interval: int = 1,
    clip: float | None = None,
) -> dict[str, torch.Tensor]:
    for step, batch in enumerate(batches(8, 8, 8, 8) * 2):
        gradients_by_hand(model, batch, clip)
        trained = [p for p in model.parameters() if p.grad is not None]
        if (step + 1) % interval == 0:
            statistics = copy.deepcopy(dict(model.named_buffers()))
            weights = [p.detach().clone() for p in trained]
            norm = torch.stack([p.grad.norm() for p in trained]).norm().item()  # type: ignore[union-attr]
            with torch.no_grad():
                for p in trained:
                    p.add_(p.grad, alpha=rho / norm)  # type: ignore[arg-type]
            gradients_by_hand(model, batch, clip)
            with torch.no_grad():
                for p, weight in zip(trained, weights, strict=True):
                    p.copy_(weight)
                for name, buffer in model.named_buffers():
                    buffer.copy_(statistics[name])
        for optimizer in optimizers:
            optimizer.step()
    return dict(model.state_dict())


@pytest.mark.parametrize(("kind", "interval"), [("sgd", 1), ("adam", 2), ("sgd", 3)])
def test_training_equals_the_hand_written_loop(kind: str, interval: int) -> None:
    ours, hand, plain = make_net(), make_net(), make_net()
    result = train(ours, SAM(rho=0.3, interval=interval), OPTIMIZERS[kind](ours.parameters()))
    assert same(result, train_by_hand(hand, [OPTIMIZERS[kind](hand.parameters())], 0.3, interval))
    assert not same(result, train(plain, (), OPTIMIZERS[kind](plain.parameters())))


def test_both_gradients_are_clipped() -> None:
    """The length of the first is not used by SAM; the second is what the optimizer gets."""
    ours, hand = make_net(), make_net()
    result = train(ours, SAM(rho=0.3), OPTIMIZERS["sgd"](ours.parameters()), grad_clip_norm=0.1)
    assert same(result, train_by_hand(hand, [OPTIMIZERS["sgd"](hand.parameters())], 0.3, clip=0.1))


def test_the_norm_is_over_the_parameters_of_all_optimizers() -> None:
    def both(model: nn.Sequential) -> list[torch.optim.Optimizer]:
        return [OPTIMIZERS["sgd"](model[:2].parameters()), OPTIMIZERS["adam"](model[3].parameters())]

    ours, hand = make_net(), make_net()
    assert same(train(ours, SAM(rho=0.3), both(ours)), train_by_hand(hand, both(hand), 0.3))


def test_frozen_parameters_have_no_part() -> None:
    ours, hand = make_net(), make_net()
    for model in (ours, hand):
        model[0].requires_grad_(False)
    result = train(ours, SAM(rho=0.3), OPTIMIZERS["sgd"](ours.parameters()))
    assert same(result, train_by_hand(hand, [OPTIMIZERS["sgd"](hand.parameters())], 0.3))
    assert torch.equal(result["0.weight"], make_net()[0].weight)


@pytest.mark.filterwarnings("ignore::engine_core.errors.UntrainedParametersWarning")
def test_parameters_of_no_optimizer_are_not_moved_and_not_in_the_norm() -> None:
    """Nothing resets their gradients, which add up from step to step."""
    ours, frozen = make_net(norm=False), make_net(norm=False)
    frozen[0].requires_grad_(False)
    results = [train(model, SAM(rho=0.3), OPTIMIZERS["sgd"](model[3].parameters())) for model in (ours, frozen)]
    assert same(*results)
