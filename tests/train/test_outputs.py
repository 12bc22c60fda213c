"""Which tensor of a model's outputs has the classes, and which targets losses take."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from engine_core.errors import ArgumentError
from engine_core.losses import class_outputs
from engine_core.objective import targets_taken

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


CLASSES = torch.tensor([0, 2, 1, 1]), torch.tensor([1, 1, 0, 2])
ONE_HOT = tuple(nn.functional.one_hot(each, 3).float() for each in CLASSES)


@pytest.mark.parametrize("kind", [nn.NLLLoss, nn.MultiMarginLoss, nn.MultiLabelMarginLoss])
def test_losses_of_classes_take_no_shares(kind):
    assert targets_taken(kind()) == "classes"
    with pytest.raises((RuntimeError, ValueError)):
        kind()(torch.rand(4, 3), ONE_HOT[0])


@pytest.mark.parametrize(
    ("loss", "pair"),
    [
        *((kind(), ONE_HOT) for kind in (nn.BCELoss, nn.BCEWithLogitsLoss, nn.MultiLabelSoftMarginLoss)),
        (nn.CrossEntropyLoss(), ONE_HOT),
        *((kind(), tuple(2 * each - 1 for each in ONE_HOT)) for kind in (nn.HingeEmbeddingLoss, nn.SoftMarginLoss)),
    ],
)
def test_shares_are_taken_where_the_loss_of_a_mixture_is_the_mixture_of_losses(loss, pair):
    outputs = torch.rand(4, 3)
    of_mixture, mixture = loss(outputs, (pair[0] + pair[1]) / 2), (loss(outputs, pair[0]) + loss(outputs, pair[1])) / 2
    assert torch.allclose(of_mixture, mixture) is (targets_taken(loss) != "1 and -1")
