"""The loss of each row, from every kind of loss."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sb_plugin.losses import check_losses, per_sample

LOGITS, CLASSES = torch.randn(6, 4, generator=torch.Generator().manual_seed(2)), torch.tensor([0, 1, 2, 3, 0, 1])
CLASS_WEIGHTS = torch.tensor([1.0, 2.0, 3.0, 4.0])


def row_by_row(loss: Callable[..., Any]) -> torch.Tensor:
    """The oracle: a batch of one row has its loss as mean."""
    return torch.stack([loss(LOGITS[i : i + 1], CLASSES[i : i + 1]) for i in range(6)])


class Smooth(nn.Module):
    def forward(self, outputs: torch.Tensor, targets: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
        return F.cross_entropy(outputs, targets, reduction=reduction, label_smoothing=0.2)


def passing_on(outputs: torch.Tensor, targets: torch.Tensor, **how: Any) -> torch.Tensor:
    return F.cross_entropy(outputs, targets, **how)


@pytest.mark.parametrize(
    "loss",
    [
        F.cross_entropy,
        functools.partial(F.cross_entropy, label_smoothing=0.1),
        functools.partial(F.cross_entropy, reduction="sum"),
        passing_on,
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(label_smoothing=0.1),
        nn.CrossEntropyLoss(reduction="sum"),
        nn.MultiMarginLoss(weight=CLASS_WEIGHTS),
        Smooth(),
    ],
)
def test_it_is_the_loss_of_a_batch_of_one(loss: Callable[..., Any]) -> None:
    assert torch.allclose(per_sample(loss)(LOGITS, CLASSES), row_by_row(loss))


def test_class_weights_weigh_rows() -> None:
    """With a mean over one row the weight would cancel out."""
    plain = F.cross_entropy(LOGITS, CLASSES, reduction="none")
    weighted = per_sample(nn.CrossEntropyLoss(weight=CLASS_WEIGHTS))(LOGITS, CLASSES)
    assert torch.allclose(weighted, plain * CLASS_WEIGHTS[CLASSES])


def test_an_ignored_row_has_no_loss() -> None:
    assert per_sample(nn.CrossEntropyLoss(ignore_index=1))(LOGITS, CLASSES)[[1, 5]].tolist() == [0, 0]


def test_a_loss_module_that_is_changed_later_is_followed() -> None:
    module = nn.CrossEntropyLoss()
    losses = per_sample(module)
    module.label_smoothing = 0.3
    assert torch.equal(losses(LOGITS, CLASSES), F.cross_entropy(LOGITS, CLASSES, reduction="none", label_smoothing=0.3))


@pytest.mark.parametrize("module", [nn.CrossEntropyLoss(), Smooth()], ids=["attribute", "argument"])
def test_a_compiled_loss_module_gives_the_losses_of_the_module(module: nn.Module) -> None:
    compiled = torch.compile(module, backend="eager")
    before = dict(vars(module)), dict(vars(compiled))
    assert torch.equal(per_sample(compiled)(LOGITS, CLASSES), per_sample(module)(LOGITS, CLASSES))
    assert (vars(module), vars(compiled)) == before


def test_a_loss_module_that_was_compiled_in_place_gives_losses_per_row() -> None:
    module = nn.CrossEntropyLoss()
    module.compile(backend="eager")
    assert torch.allclose(per_sample(module)(LOGITS, CLASSES), row_by_row(F.cross_entropy))


def test_the_attribute_of_a_loss_module_goes_before_keywords_that_it_passes_on() -> None:
    class Logged(nn.CrossEntropyLoss):
        def forward(self, outputs: torch.Tensor, targets: torch.Tensor, **unused: Any) -> torch.Tensor:
            return super().forward(outputs, targets)

    assert torch.allclose(per_sample(Logged())(LOGITS, CLASSES), row_by_row(F.cross_entropy))


def test_a_builtin_without_signature_is_refused() -> None:
    with pytest.raises(TypeError, match="takes no `reduction`"):
        per_sample(torch.dist)


@pytest.mark.parametrize(
    ("losses", "error", "message"),
    [
        (torch.zeros(6, 4), ValueError, r"shape \(6, 4\), not \(6,\).*losses.flatten\(1\).mean\(1\)"),
        (torch.zeros(6, 1), ValueError, r"shape \(6, 1\), not \(6,\)"),
        (torch.zeros(()), ValueError, r"shape \(\), not \(6,\).*respect reduction='none'"),
        (torch.zeros(24), ValueError, r"shape \(24,\), not \(6,\).*losses.view\(n, -1\).mean\(1\)"),
        ([0.5], TypeError, r"gave 0\.5, not a tensor of shape \(6,\)"),
        (None, TypeError, "gave None"),
    ],
)
def test_anything_but_one_value_per_row_is_refused(losses: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        check_losses(losses, 6)


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ((torch.ones(3), torch.full((3,), 2.0)), [3, 3, 3]),
        ({"a": torch.ones(3), "b": torch.ones(3)}, [2, 2, 2]),
        ({"a": torch.ones(3), "total": torch.full((3,), 5.0)}, [5, 5, 5]),
        (torch.ones(3, dtype=torch.float64), [1, 1, 1]),
    ],
)
def test_parts_of_a_loss_are_put_together_as_the_trainer_does(losses: Any, expected: list[float]) -> None:
    found = check_losses(losses, 3)
    assert (found.tolist(), found.dtype) == (expected, torch.float32)
