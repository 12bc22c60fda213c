"""Mixed targets and mixed losses: where both are the mixture of two losses, and where they are not."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from augmentation_plugin import mix_losses, mix_targets
from engine_core.errors import ArgumentError

LAM = 0.3


def outputs_and_targets(*positions: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    outputs = torch.randn(6, 5, *positions, dtype=torch.double, requires_grad=True)
    target = torch.randint(5, (6, *positions))
    return outputs, target, target[torch.randperm(6)]


def gradient(loss: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(loss, outputs)[0]


@pytest.mark.parametrize(
    ("positions", "reduction", "smoothing"), [((), "mean", 0.0), ((7,), "sum", 0.0), ((3, 4), "mean", 0.1)]
)
def test_cross_entropy_of_mixed_targets_is_the_mixture_of_two_losses(
    positions: tuple[int, ...], reduction: str, smoothing: float
) -> None:
    loss_fn = nn.CrossEntropyLoss(reduction=reduction, label_smoothing=smoothing)
    outputs, target, paired = outputs_and_targets(*positions)
    of_targets = loss_fn(outputs, mix_targets(target, paired, LAM, 5, torch.double))
    of_losses = mix_losses(loss_fn(outputs, target), loss_fn(outputs, paired), LAM)
    by_hand = LAM * loss_fn(outputs, target) + (1 - LAM) * loss_fn(outputs, paired)
    torch.testing.assert_close(of_targets, by_hand, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(of_losses, by_hand, rtol=0, atol=0)
    torch.testing.assert_close(gradient(of_targets, outputs), gradient(by_hand, outputs), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("loss_fn", "losses", "gradients"),
    [(F.mse_loss, (0.25, 1.25), (1.0, 1.0)), (F.l1_loss, (0.5, 1.0), (1.0, 0.0))],
)
def test_other_losses_distinguish_the_two_forms(loss_fn: Any, losses: Any, gradients: Any) -> None:
    outputs, target, paired = torch.tensor([0.5], requires_grad=True), torch.tensor([1.0]), torch.tensor([-1.0])
    of_targets = loss_fn(outputs, mix_targets(target, paired, 0.5))
    of_losses = mix_losses(loss_fn(outputs, target), loss_fn(outputs, paired), 0.5)
    assert (of_targets.item(), of_losses.item()) == losses
    assert (gradient(of_targets, outputs).item(), gradient(of_losses, outputs).item()) == gradients


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool])
def test_classes_become_probabilities(dtype: torch.dtype) -> None:
    target, paired = torch.tensor([0, 1, 1]).to(dtype), torch.tensor([1, 0, 1]).to(dtype)
    expected = torch.tensor([[0.25, 0.75, 0.0], [0.75, 0.25, 0.0], [0.0, 1.0, 0.0]])
    assert torch.equal(mix_targets(target, paired, 0.25, 3), expected)


def test_classes_of_positions_become_probabilities_in_dimension_1() -> None:
    target, paired = torch.randint(4, (3, 2, 5)), torch.randint(4, (3, 2, 5))
    expected = LAM * F.one_hot(target, 4).movedim(-1, 1) + (1 - LAM) * F.one_hot(paired, 4).movedim(-1, 1)
    torch.testing.assert_close(mix_targets(target, paired, LAM, 4), expected.float())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_floats_are_mixed_as_they_are(dtype: torch.dtype) -> None:
    target, paired = torch.rand(4, 3).to(dtype), torch.rand(4, 3).to(dtype)
    mixed = mix_targets(target, paired, LAM)
    assert mixed.dtype is dtype
    torch.testing.assert_close(mixed, LAM * target + (1 - LAM) * paired)


@pytest.mark.parametrize("wrong", [-100, 5])
def test_anything_but_a_class_is_refused(wrong: int) -> None:
    with pytest.raises(ArgumentError, match=rf"{wrong}.*interpolate the losses"):
        mix_targets(torch.tensor([0, wrong]), torch.tensor([wrong, 0]), LAM, 5)


def test_classes_need_their_number() -> None:
    with pytest.raises(ArgumentError, match="give num_classes"):
        mix_targets(torch.tensor([0]), torch.tensor([0]), LAM)


class Parts(tuple):
    """A named tuple is one with `_fields`, made of separate arguments."""

    __slots__ = ()
    _fields = ("a", "b")

    def __new__(cls, a: float, b: float) -> Any:
        return super().__new__(cls, (a, b))


@pytest.mark.parametrize(
    ("loss", "paired", "expected"),
    [
        (4.0, 8.0, 5.0),
        ((4.0, 0.0), (8.0, 4.0), (5.0, 1.0)),
        ({"total": 4.0, "x": {"y": 0.0}}, {"total": 8.0, "x": {"y": 4.0}}, {"total": 5.0, "x": {"y": 1.0}}),
        (Parts(4.0, 0.0), Parts(8.0, 4.0), Parts(5.0, 1.0)),
    ],
)
def test_losses_are_mixed_part_by_part(loss: Any, paired: Any, expected: Any) -> None:
    mixed = mix_losses(loss, paired, 0.75)
    assert mixed == expected
    assert type(mixed) is type(expected)


@pytest.mark.parametrize(
    ("loss", "paired"), [({"a": 1.0}, {"b": 1.0}), ({"a": 1.0}, 1.0), ((1.0,), (1.0, 2.0)), ((1.0,), 1.0)]
)
def test_losses_of_different_parts_are_refused(loss: Any, paired: Any) -> None:
    with pytest.raises(ArgumentError, match="paired targets"):
        mix_losses(loss, paired, 0.5)


@pytest.mark.parametrize("lam", [-0.1, float("nan"), "0.5"])
def test_an_invalid_share_is_refused(lam: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="lam="):
        mix_targets(torch.tensor([0]), torch.tensor([0]), lam, 3)
    with pytest.raises((ValueError, TypeError), match="lam="):
        mix_losses(1.0, 2.0, lam)


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64, "float32"])
def test_a_dtype_without_shares_is_refused(dtype: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="dtype="):
        mix_targets(torch.tensor([0]), torch.tensor([1]), LAM, 3, dtype)


@pytest.mark.parametrize(
    ("target", "paired", "words"),
    [
        ([0, 1], torch.tensor([0, 1]), "target has to be a tensor, not a list"),
        (torch.tensor([0, 1]), [0, 1], "paired_target has to be a tensor, not a list"),
        (torch.tensor([0, 1]), torch.tensor([0]), r"\(2,\) of torch.int64 can't be mixed with \(1,\)"),
        (torch.tensor([0, 1]), torch.zeros(2), "of torch.float32"),
    ],
)
def test_targets_that_do_not_go_together_are_refused(target: Any, paired: Any, words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        mix_targets(target, paired, LAM, 2)
