"""Which losses take smoothed targets, and what is said at the first batch about those that do not."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from engine_core import Engine, Event, Logger, State
from engine_core.errors import ArgumentError, EngineError
from labels_plugin import LabelSmoothing

LABELS, IGNORED = torch.tensor([0, 1, 2, 0]), torch.tensor([0, 1, -100, 0])
PROBABILITIES = torch.eye(3)[LABELS]
WEIGHT = torch.tensor([1.0, 2.0, 3.0])


def validated(loss: Any, target: Any, smoothing: float = 0.1, **fields: Any) -> State:
    """Fire the event at which the engine lets algorithms look at their first batch."""
    state = State(algorithms=[LabelSmoothing(smoothing)], loss_fn=loss, batch=(torch.zeros(4, 3), target), **fields)
    with Engine(state, Logger()) as engine:
        engine.run_event(Event.AFTER_DATALOADER)
    return state


def own_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Can't be recognized as torch's."""
    return F.cross_entropy(outputs, targets)


class Focal(nn.CrossEntropyLoss):
    """A loss with its own formula."""

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs.softmax(1)[range(len(targets)), targets] - 1).square().mean()


class Likelihood(nn.NLLLoss):
    """A loss that takes what its base does not."""

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return -(targets * outputs).sum(1).mean()


@pytest.mark.parametrize(
    ("loss", "target", "message"),
    [
        (nn.NLLLoss(), LABELS, "NLLLoss takes only classes: use torch.nn.CrossEntropyLoss, on logits"),
        (nn.BCEWithLogitsLoss(), PROBABILITIES, r"BCEWithLogitsLoss takes only 0 to 1 for each output.*y \* \(1 - s\)"),
        (nn.CrossEntropyLoss(label_smoothing=0.2), LABELS, r"its own label_smoothing=0\.2.*twice"),
        (nn.CrossEntropyLoss(ignore_index=255), LABELS, "ignore_index=255, but torch takes.*in the data, like -100"),
        (partial(F.cross_entropy, ignore_index=0), LABELS, r"cross_entropy\(ignore_index=0, label_smoothing=...\)"),
        (own_loss, IGNORED, "target -100.*only for torch's cross_entropy"),
        (Focal(), IGNORED, "target -100"),
        (None, IGNORED, "target -100"),
        (F.cross_entropy, list("abcd"), "found a list under target_key=1"),
        (F.cross_entropy, torch.zeros(4), r"float targets \(4,\), which are not classes"),
        (F.mse_loss, torch.full((4, 3), 7.0), "not probabilities along dimension 1"),
        (F.cross_entropy, torch.tensor([[1.5, -0.5, 0.0]]).expand(4, 3), "not probabilities along dimension 1"),
    ],
)
def test_refused_at_the_first_batch(loss: Any, target: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message) as raised:
        validated(loss, target)
    assert isinstance(raised.value, EngineError)


@pytest.mark.parametrize(
    ("loss", "target"),
    [
        (F.cross_entropy, IGNORED),
        (nn.CrossEntropyLoss(weight=WEIGHT, ignore_index=-1, reduction="sum"), LABELS),
        (own_loss, LABELS),
        (Likelihood(), LABELS),
        (nn.KLDivLoss(reduction="batchmean"), PROBABILITIES),
        (F.cross_entropy, torch.full((4, 3), 1 / 3).bfloat16()),
        (None, LABELS),
    ],
)
def test_taken_at_the_first_batch(loss: Any, target: Any) -> None:
    assert validated(loss, target).batch[1] is target


def test_without_smoothing_nothing_is_refused() -> None:
    validated(nn.NLLLoss(), IGNORED, smoothing=0)


@pytest.mark.parametrize(
    ("key", "batch", "error", "message"),
    [
        ("lables", {"labels": LABELS}, LookupError, r"^target_key='lables': .*did you mean 'labels'"),
        (2, (torch.zeros(4, 3), LABELS, LABELS.clone()), ArgumentError, "target_key=2 is not item 1.*set target_key=1"),
    ],
)
def test_a_key_of_what_the_loss_does_not_get_is_refused(
    key: Any, batch: Any, error: type[Exception], message: str
) -> None:
    state = State(algorithms=[LabelSmoothing(target_key=key)], loss_fn=F.cross_entropy, batch=batch)
    with Engine(state, Logger()) as engine, pytest.raises(error, match=message):
        engine.run_event(Event.AFTER_DATALOADER)


def test_a_later_batch_with_ignored_targets_is_refused_where_the_divisor_is_not_known() -> None:
    state = State(algorithms=[LabelSmoothing()], batch=(None, IGNORED), outputs=torch.zeros(4, 3))
    with Engine(state, Logger()) as engine, pytest.raises(ValueError, match=r"target -100.*label_smoothing=\.\.\."):
        engine.run_event(Event.BEFORE_LOSS)
    assert state.batch[1] is IGNORED
