"""The loss of each row, from every kind of loss: that which a batch of this row alone has, or a refusal."""

import functools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from engine_core import Batches, Loss, ModelLoss, Objective
from engine_core.errors import ArgumentError, ArgumentTypeError

NET = nn.Identity()


def rows_of(objective, outputs, batch, model=NET):
    with torch.no_grad():
        return objective.row_losses(model, outputs, batch)


class Smooth(nn.Module):
    def forward(self, outputs, targets, reduction="mean"):
        return F.cross_entropy(outputs, targets, reduction=reduction, label_smoothing=0.2)


class Logged(nn.CrossEntropyLoss):
    def forward(self, outputs, targets, **unused):
        return super().forward(outputs, targets)


def passing_on(outputs, targets, **how):
    return F.cross_entropy(outputs, targets, **how)


def compiled_in_place():
    module = nn.CrossEntropyLoss()
    module.compile(backend="eager")
    return module


CLASSES = [
    *(F.cross_entropy, passing_on, nn.NLLLoss(), compiled_in_place(), Logged(), Smooth()),
    *(nn.CrossEntropyLoss(**how) for how in ({"label_smoothing": 0.1}, {"ignore_index": 2}, {"reduction": "sum"})),
    *(functools.partial(F.cross_entropy, **how) for how in ({"reduction": "sum"}, {"label_smoothing": 0.1})),
    *(torch.compile(loss, backend="eager") for loss in (nn.CrossEntropyLoss(), Smooth())),
]
DENSE = [
    nn.MSELoss(),
    nn.L1Loss(reduction="sum"),
    F.huber_loss,
    nn.BCEWithLogitsLoss(),
    nn.KLDivLoss(reduction="batchmean"),
]


@given(st.sampled_from([*CLASSES, *DENSE]), st.integers(1, 5), st.lists(st.integers(1, 3), max_size=2), st.randoms())
def test_it_is_the_loss_of_a_batch_of_this_row_alone(loss_fn, rows, more, random):
    generator = torch.Generator().manual_seed(random.randrange(2**31))
    outputs = torch.randn(rows, 4, *more, generator=generator)
    targets = torch.rand(rows, 4, *more, generator=generator)
    if loss_fn in CLASSES:
        targets = torch.randint(4, (rows, *more), generator=generator)
    objective = Objective(loss_fn, inputs="x", targets="y")
    batch = {"x": outputs, "y": targets, "temperature": 3}
    one = [slice(row, row + 1) for row in range(rows)]
    alone = [objective.loss(NET, outputs[row], Batches().part(batch, row)) for row in one]
    expected = torch.stack([loss.mean.nan_to_num() for loss in alone])  # NaN where all is ignored, which has no loss
    assert torch.allclose(rows_of(objective, outputs, batch), expected, atol=1e-6)


def test_class_weights_weigh_rows():
    """In a mean over one row the weight would cancel out."""
    outputs, targets, weights = torch.randn(6, 4), torch.tensor([0, 1, 2, 3, 0, 1]), torch.tensor([0.2, 0.5, 1.0, 3.0])
    objective = Objective(nn.CrossEntropyLoss(weight=weights))
    expected = F.cross_entropy(outputs, targets, reduction="none") * weights[targets]
    assert torch.allclose(rows_of(objective, outputs, (outputs, targets)), expected)


def in_parts(outputs, targets, reduction="mean"):
    parts = {"ce": F.cross_entropy(outputs, targets, reduction="none"), "size": outputs.square().mean(1)}
    parts["accuracy"] = (outputs.argmax(1) == targets).float() + 0.5
    return parts if reduction == "none" else {name: part.mean() for name, part in parts.items()}


def test_of_parts_those_with_a_gradient_count_before_and_after_training_and_in_evaluations():
    outputs, targets = torch.randn(3, 4), torch.arange(3)
    parts = in_parts(outputs, targets, "none")
    expected = parts["ce"] + parts["size"]
    for trains_first in (False, True):
        objective, batch = Objective(in_parts), (outputs, targets)
        if trains_first:
            objective.loss(NET, outputs.clone().requires_grad_(), batch)
        assert torch.allclose(rows_of(objective, outputs, batch), expected)
        with torch.no_grad():
            assert torch.allclose(objective.eval_loss(NET, outputs, batch).mean, expected.mean())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (torch.zeros(()), r"gives shape \(\) with reduction='none' for 3 rows; it has to be \(3,\)"),
        (torch.zeros(12), r"shape \(12,\) .* or have the rows in dimension 0"),
        ({"a": torch.zeros(3), "b": torch.zeros(())}, r"the loss 'b' gives shape \(\)"),
        ({"loss": torch.zeros(3), "total": torch.zeros(3)}, "both a 'total' and a 'loss'"),
        (Loss(torch.zeros(()), 3), "gives Loss"),
        (None, "gives None"),
    ],
)
def test_anything_but_losses_of_rows_is_refused(given, message):
    with pytest.raises(ArgumentError, match=message):
        rows_of(Objective(lambda outputs, targets, reduction: given), torch.zeros(3), (torch.zeros(3), 1))


class Own(Objective):
    def loss(self, model, outputs, batch):
        return Loss(outputs.sum(), len(outputs))


@pytest.mark.parametrize(
    ("objective", "error", "message"),
    [
        (Objective(lambda outputs, targets: 0), ArgumentTypeError, "<lambda> takes no `reduction`"),
        (Objective(torch.dist), ArgumentTypeError, "dist takes no `reduction`"),
        (Objective(), ArgumentTypeError, "Identity.loss takes no `reduction`"),
        (Own(F.mse_loss), ArgumentError, "Own.loss gives one loss for all rows.*: override Own.row_losses"),
        (ModelLoss(), ArgumentError, "ModelLoss.loss gives one loss for all rows.* or give Objective"),
    ],
)
def test_a_loss_without_rows_is_refused_before_anything_runs(objective, error, message):
    with pytest.raises(error, match=message):
        objective.check_row_losses(NET)
    with pytest.raises(error, match=message):
        objective.row_losses(NET, torch.zeros(3), (torch.zeros(3), torch.zeros(3)))


@given(st.sampled_from(DENSE), st.integers(1, 4), st.integers(1, 4))
def test_rows_in_another_dimension_have_the_same_losses(loss_fn, rows, steps):
    outputs, targets = torch.randn(rows, steps, 2), torch.rand(rows, steps, 2)
    first, second = Objective(loss_fn), Objective(loss_fn)
    second.batches = Batches(dim={"": 1})
    other = outputs.transpose(0, 1), targets.transpose(0, 1)
    expected = rows_of(first, outputs, (outputs, targets))
    assert torch.allclose(rows_of(second, other[0], other), expected)
    second.batches = Batches(dim={0: 1})  # the targets, and so the loss, have them first
    mean = Objective(lambda outputs, targets, reduction: (outputs.mean(0) - targets.mean(1)).square())
    mean.batches = second.batches
    found = rows_of(mean, other[0], (other[0], targets))
    assert torch.allclose(found, (outputs.mean(1) - targets.mean(1)).square().mean(1))
