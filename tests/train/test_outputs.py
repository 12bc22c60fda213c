"""Which tensor of a model's outputs has the classes, and whether a loss is among them."""

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch

from engine_core.errors import ArgumentError
from engine_core.losses import class_outputs, holds_loss

LOGITS, LABELS = torch.zeros(4, 3), torch.tensor([0, 1, 2, 0])


@dataclass
class Outputs:
    logits: torch.Tensor
    loss: torch.Tensor


@pytest.mark.parametrize(
    "outputs",
    [
        (LOGITS, torch.zeros(4, 3)),
        {"scale": torch.zeros(()), "logits": LOGITS, "rows": torch.zeros(4)},
        Outputs(LOGITS, torch.zeros(())),
        [LOGITS, {"boxes": torch.zeros(9, 4)}],
    ],
    ids=["auxiliary head", "mapping", "dataclass", "nested"],
)
@pytest.mark.parametrize("target", [LABELS, torch.eye(3)[LABELS]], ids=["indices", "probabilities"])
def test_the_one_of_several_outputs_that_fits_the_target_is_taken(outputs, target):
    assert class_outputs(outputs, target) is LOGITS


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({"logits": LOGITS, "hidden": torch.zeros(4, 16)}, r"are a dict .*\(4, 3\), \(4, 16\) fits the targets \(4,\)"),
        ((torch.zeros(4), torch.zeros(5, 3)), r"are a tuple .*no tensor fits.*return only the logits"),
        (None, "are a NoneType"),
    ],
)
def test_ambiguous_outputs_are_refused(outputs, message):
    with pytest.raises(ArgumentError, match=message):
        class_outputs(outputs, LABELS)


def test_one_tensor_is_taken_as_it_is():
    outputs = torch.zeros(9)
    assert class_outputs(outputs, LABELS) is outputs


def test_a_tensor_of_one_dimension_has_no_classes():
    with pytest.raises(ArgumentError, match="no tensor fits"):
        class_outputs({"scores": torch.zeros(4)}, torch.tensor(1))


class Named(NamedTuple):
    loss: torch.Tensor
    logits: torch.Tensor


@pytest.mark.parametrize("put", [lambda loss: loss, lambda loss: {"a": [loss]}, lambda loss: Named(loss, LOGITS)])
def test_a_loss_is_found_where_it_is_the_very_tensor(put):
    loss = torch.ones(())
    assert holds_loss(put(loss), loss)
    assert not holds_loss(put(loss.clone()), loss)


@pytest.mark.parametrize("outputs", [None, LOGITS, {"logits": LOGITS, "loss": 1.0}])
def test_a_loss_that_is_not_a_tensor_is_not_among_tensors(outputs):
    assert not holds_loss(outputs, {"a": torch.ones(())})
