"""The gradients of microbatches with smoothed targets add up to that of the whole batch, and that is torch's own."""

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from engine_core import Trainer
from labels_plugin import LabelSmoothing

WEIGHT = torch.tensor([0.5, 1.0, 2.0, 4.0], dtype=torch.double)


def own_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Can't be recognized as torch's."""
    return F.cross_entropy(outputs, targets)


def step(batch: Any, loss: Any, size: int | None, smoothing: float) -> tuple[torch.Tensor, float]:
    """Return the weights after one step of SGD with lr=1, and the loss, in double precision."""
    torch.manual_seed(5)
    model = nn.Linear(3, 4).double()
    with Trainer(
        model,
        [batch],
        max_duration="1ba",
        loss_fn=loss,
        optimizers=torch.optim.SGD(model.parameters(), lr=1.0),
        algorithms=LabelSmoothing(smoothing),
        microbatch_size=size,
    ) as trainer:
        trainer.fit()
        return model.weight.detach(), trainer.state.loss.item()


@settings(deadline=None, max_examples=40)
@given(
    labels=st.lists(st.sampled_from([0, 1, 2, 3, -100]), min_size=2, max_size=9).filter(lambda y: max(y) >= 0),
    size=st.integers(1, 5),
    weighted=st.booleans(),
    reduction=st.sampled_from(["mean", "sum"]),
)
def test_with_ignored_rows_and_class_weights_they_equal_torchs_on_the_whole_batch(
    labels: list[int], size: int, weighted: bool, reduction: str
) -> None:
    target = torch.tensor(labels)
    batch = (torch.randn(len(labels), 3, dtype=torch.double), target)
    loss = partial(F.cross_entropy, weight=WEIGHT if weighted else None, reduction=reduction)
    pieces = step(batch, loss, size, 0.2)
    torch.testing.assert_close(pieces, step(batch, loss, None, 0.2))
    torch.testing.assert_close(pieces, step(batch, partial(loss, label_smoothing=0.2), None, 0.0))


@pytest.mark.parametrize("loss", [F.cross_entropy, own_loss])
@pytest.mark.parametrize("dense", [False, True], ids=["indices", "probabilities"])
def test_losses_that_count_by_rows_do_so_too(loss: Any, dense: bool) -> None:
    target = torch.arange(7) % 4
    batch = (torch.randn(7, 3, dtype=torch.double), torch.eye(4, dtype=torch.double)[target] if dense else target)
    torch.testing.assert_close(step(batch, loss, 3, 0.2), step(batch, loss, None, 0.2))


@pytest.mark.parametrize("size", [None, 2])
def test_a_batch_of_ignored_rows_alone_changes_no_weight(size: int | None) -> None:
    batch = (torch.randn(4, 3, dtype=torch.double), torch.full((4,), -100))
    weight, loss = step(batch, F.cross_entropy, size, 0.2)
    torch.manual_seed(5)
    assert torch.equal(weight, nn.Linear(3, 4).double().weight)
    assert loss == 0
