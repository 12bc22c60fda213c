"""Parts of a batch with smoothed targets, microbatches and ranks, give its step, and that is the one of torch's own."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from engine_core import Loss, Objective
from engine_core.errors import ArgumentError
from engine_core_author import ThreadRanks
from labels_plugin import LabelSmoothing

WEIGHT = torch.tensor([0.5, 1.0, 2.0, 4.0], dtype=torch.double)


def own_loss(outputs, targets):
    """Can't be recognized as torch's."""
    return F.cross_entropy(outputs, targets)


def counted_loss(outputs, targets):
    return Loss(F.cross_entropy(outputs, targets, reduction="sum"), len(targets))


def parts_loss(outputs, targets):
    return {"ce": F.cross_entropy(outputs, targets), "norm": outputs.square().sum(1).mean()}


@pytest.fixture(scope="module")
def step(one_step):
    """Return a function that gives the weights after one step, and the loss, in double precision."""

    def make(batch, loss, smoothing, size=None, ranks=None):
        model = nn.Linear(3, 4).double()
        nn.init.constant_(model.bias, 0.1)
        with torch.no_grad():
            model.weight.copy_(torch.arange(12.0).view(4, 3).sin())
        objective, algorithm = Objective(loss, inputs="x", targets="y"), LabelSmoothing(smoothing, target_key="y")
        return one_step(model, batch, size, ranks, objective=objective, algorithms=algorithm)

    return make


def batch_of(target):
    return {"y": target, "x": torch.arange(3.0 * len(target)).view(-1, 3).double().cos()}


def in_parts(step, batch, loss, size):
    """Return the step in microbatches, and on two ranks."""
    return [step(batch, loss, 0.2, size), *ThreadRanks.run(lambda ranks: step(batch, loss, 0.2, size, ranks))]


@settings(deadline=None, max_examples=12)
@given(
    labels=st.lists(st.sampled_from([0, 1, 2, 3, -100]), min_size=2, max_size=9).filter(lambda y: max(y) >= 0),
    size=st.integers(1, 5),
    weighted=st.booleans(),
    reduction=st.sampled_from(["mean", "sum"]),
)
def test_with_ignored_rows_and_class_weights_they_equal_torchs_on_the_whole_batch(
    step, labels, size, weighted, reduction
):
    batch = batch_of(torch.tensor(labels))
    loss = partial(F.cross_entropy, weight=WEIGHT if weighted else None, reduction=reduction)
    expected = step(batch, partial(loss, label_smoothing=0.2), 0.0)
    for found in (step(batch, loss, 0.2), *in_parts(step, batch, loss, size)):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("loss", "form"),
    [
        (F.cross_entropy, "one-hot integers"),
        (own_loss, "indices"),
        (counted_loss, "probabilities"),
        (counted_loss, "one-hot integers"),
        (parts_loss, "probabilities"),
    ],
)
def test_with_any_loss_and_form_of_targets_they_equal_that_of_indices(step, loss, form):
    labels = torch.arange(7) % 4
    one_hot = F.one_hot(labels, 4)
    batch = batch_of({"indices": labels, "probabilities": one_hot.double(), "one-hot integers": one_hot}[form])
    expected = step(batch_of(labels), loss, 0.2)
    for found in (step(batch, loss, 0.2), *in_parts(step, batch, loss, 3)):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_a_loss_that_counts_the_smoothed_targets_is_refused(step):
    def of_tokens(outputs, targets):
        return Loss(F.cross_entropy(outputs, targets, reduction="sum"), (targets != -100).sum())

    with pytest.raises(
        ArgumentError, match=r"of_tokens counts 8.0 for the targets of the batch, and 32.0 for those of"
    ):
        step(batch_of(torch.arange(8) % 4), of_tokens, 0.2)


def test_a_batch_of_ignored_rows_alone_changes_no_weight(step):
    batch = batch_of(torch.full((4,), -100))
    expected = step(batch_of(torch.zeros(4).long()), lambda outputs, targets: outputs.sum() * 0, 0.0)
    assert torch.equal(step(batch, F.cross_entropy, 0.2, 2)[0], expected[0])
