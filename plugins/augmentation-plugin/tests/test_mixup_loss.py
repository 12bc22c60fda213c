"""The loss that MixUp and CutMix train on, in both forms, for losses of all shapes; `test_mixup_law` has its steps."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from augmentation_plugin import CutMix, MixUp
from augmentation_plugin.mixing import Mixing
from engine_core import State, Trainer

SEED = 3


def make_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))


def make_batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(2)
    return [(torch.randn(rows, 2, 8, 8), torch.randint(3, (rows,))) for rows in (8, 8, 5, 1)]


def fit(algorithm: Any, model: nn.Module, batches: Any, loss_fn: Any, **options: Any) -> list[Any]:
    """Train an epoch; return the losses as the algorithms leave them."""
    losses: list[Any] = []

    class Record:
        def after_loss(self, state: State, logger: Any) -> None:
            losses.append(state.loss)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"seed": SEED, "loss_fn": loss_fn, "optimizers": optimizer, "callbacks": Record(), **options}
    with Trainer(model, batches, algorithms=algorithm, **options) as trainer:
        trainer.fit("1ep")
    return losses


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.fixture(params=[MixUp, CutMix])
def kind(request: pytest.FixtureRequest) -> type[Mixing]:
    return request.param


@pytest.mark.parametrize("form", [tuple, dict])
def test_each_part_of_a_loss_is_interpolated(kind: type[Mixing], form: type) -> None:
    def loss_fn(outputs: torch.Tensor, targets: torch.Tensor) -> Any:
        parts = {"a": F.cross_entropy(outputs, targets), "b": targets.double().square().mean()}
        return parts if form is dict else form(parts.values())

    x, y = make_batches()[0]
    y = torch.where(y == 0, 2, y)
    (loss,) = fit(kind(alpha=0.7, interpolate_loss=True), make_model(), [(x, y)], loss_fn)
    (plain,) = fit(kind(alpha=0.7, interpolate_loss=True), make_model(), [(x, y)], F.cross_entropy)
    parts = list(loss.values()) if form is dict else list(loss)
    assert type(loss) is form
    torch.testing.assert_close(parts[0], plain)
    torch.testing.assert_close(parts[1], y.double().square().mean())  # that of all rows, however they are paired


def test_targets_in_a_dict_are_all_paired(kind: type[Mixing]) -> None:
    def of_both(outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        return F.cross_entropy(outputs, targets["a"]) + F.cross_entropy(outputs, targets["b"])

    x, y = make_batches()[0]
    (loss,) = fit(kind(interpolate_loss=True), make_model(), [(x, {"a": y, "b": y})], of_both)
    (plain,) = fit(kind(interpolate_loss=True), make_model(), [(x, y)], F.cross_entropy)
    torch.testing.assert_close(loss, 2 * plain)


def test_the_second_loss_is_computed_in_the_precision_of_the_state(kind: type[Mixing]) -> None:
    autocasts = []

    def loss_fn(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        autocasts.append(torch.is_autocast_enabled("cpu"))
        return F.mse_loss(outputs @ outputs.T, targets)  # which autocast computes in bfloat16

    algorithm, batch = kind(interpolate_loss=True), (torch.randn(4, 2, 8, 8), torch.zeros(4, 4))
    for precision in ("amp_bf16", "fp32"):  # in the second run another than in the first
        fit(algorithm, make_model(), [batch], loss_fn, precision=precision)
    assert autocasts == [True, True, False, False]


@pytest.mark.parametrize("precision", ["fp32", "amp_bf16"])
def test_dense_targets_are_in_single_precision_at_least(kind: type[Mixing], precision: str) -> None:
    seen = []

    def loss_fn(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        seen.append(targets.dtype)
        return F.cross_entropy(outputs, targets)

    fit(kind(), make_model(), make_batches()[:1], loss_fn, precision=precision)
    assert seen == [torch.float32]


def test_targets_of_positions_are_mixed_in_class_dimension_1() -> None:
    model = nn.Conv2d(2, 3, 3, padding=1)
    x, y = torch.randn(4, 2, 8, 8), torch.randint(3, (4, 8, 8))
    start = weights(model).clone()
    forms = []
    for interpolate_loss in (False, True):
        nn.utils.vector_to_parameters(start.clone(), model.parameters())
        forms += fit(MixUp(1.0, interpolate_loss), model, [(x, y)], F.cross_entropy)
    torch.testing.assert_close(*forms)
