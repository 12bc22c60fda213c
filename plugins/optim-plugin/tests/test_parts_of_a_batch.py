"""GradientPenalty and SAM in microbatches and on two ranks: the step of the whole batch, written by hand."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from engine_core import Algorithm, Loss, Objective
from engine_core_author import ThreadRanks
from optim_plugin import SAM, GradientPenalty

WEIGHT = torch.tensor([0.5, 1.0, 2.0], dtype=torch.double)
RHO, FACTOR = 0.3, 0.7


def tokens(outputs: torch.Tensor, targets: torch.Tensor) -> Loss:
    return Loss(F.cross_entropy(outputs, targets, reduction="sum"), (targets != -100).sum())


def parts(outputs: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"square": outputs.square().sum(1).mean(), "first": outputs[:, 0].exp().mean()}


# Each with what its mean divides the sum by, and the sum.
LOSSES: dict[str, tuple[Any, Callable[..., Any], Callable[..., torch.Tensor]]] = {
    "ignored and weighted": (
        nn.CrossEntropyLoss(WEIGHT),
        lambda y: WEIGHT[y[y >= 0]].sum(),
        lambda out, y: F.cross_entropy(out, y, WEIGHT, reduction="sum"),
    ),
    "sum": (
        nn.CrossEntropyLoss(reduction="sum"),
        lambda y: 1,
        lambda out, y: F.cross_entropy(out, y, reduction="sum"),
    ),
    "Loss of tokens": (tokens, lambda y: (y >= 0).sum(), lambda out, y: F.cross_entropy(out, y, reduction="sum")),
    "rows, in parts": (parts, len, lambda out, y: (out.square().sum(1) + out[:, 0].exp()).sum()),
}


def make_batch() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    y = torch.tensor([0, -100, 1, 2, -100, -100, 1])
    return {"y": y, "x": torch.randn(7, 4, generator=generator, dtype=torch.double)}


def make_net() -> nn.Sequential:
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    for number, parameter in enumerate(net.parameters()):
        nn.init.constant_(parameter, 0.1)
        parameter.data += torch.arange(parameter.numel()).view_as(parameter).add(number).sin() / 2
    return net


def vector(net: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(net.parameters()).detach()


def by_hand(name: str, *, penalized: bool, sharp: bool) -> Any:
    _, count_of, sum_of = LOSSES[name]
    net, batch = make_net(), make_batch()

    def backward() -> torch.Tensor:
        net.zero_grad()
        x, count = batch["x"].clone().requires_grad_(), count_of(batch["y"])
        total = sum_of(net(x), batch["y"])
        (slope,) = torch.autograd.grad(total, x, create_graph=True)
        loss: torch.Tensor = (total + FACTOR * penalized * slope.square().sum()) / count
        loss.backward()
        return torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])

    start, gradient = vector(net), backward()
    x = batch["x"].clone().requires_grad_()
    total = sum_of(net(x), batch["y"])
    (slope,) = torch.autograd.grad(total, x)
    loss = (total + FACTOR * penalized * slope.square().sum()) / count_of(batch["y"])
    if sharp:
        nn.utils.vector_to_parameters(start + RHO * gradient / gradient.norm(), net.parameters())
        gradient = backward()
    return start - gradient, loss.item()


@pytest.mark.parametrize(
    ("name", "penalized", "sharp"),
    [("rows, in parts", True, False), ("Loss of tokens", False, True), *((name, True, True) for name in LOSSES)],
)
def test_whatever_the_loss_counts_the_step_is_that_of_the_whole_batch(
    one_step: Any, name: str, penalized: bool, sharp: bool
) -> None:
    def made(size: int | None, ranks: Any = None) -> Any:
        algorithms: list[Algorithm] = [GradientPenalty(FACTOR, "x")] * penalized + [SAM(RHO)] * sharp
        objective = Objective(LOSSES[name][0], inputs="x", targets="y")
        return one_step(make_net(), make_batch(), size, ranks, objective=objective, algorithms=algorithms)

    expected = by_hand(name, penalized=penalized, sharp=sharp)
    for size in (None, 1, 3):
        for found in (made(size), *ThreadRanks.run(lambda ranks, size=size: made(size, ranks))):
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
