"""What torch's losses take for targets, held against torch: is the loss of a mixture the mixture of the losses?"""

import pytest
import torch
from torch import nn

from engine_core.objective import targets_taken

CLASSES = torch.tensor([0, 2, 1, 1]), torch.tensor([1, 1, 0, 2])
ONE_HOT = tuple(nn.functional.one_hot(each, 3).float() for each in CLASSES)


@pytest.mark.parametrize("kind", [nn.NLLLoss, nn.MultiMarginLoss, nn.MultiLabelMarginLoss])
def test_losses_of_classes_take_no_shares(kind: type[nn.Module]) -> None:
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
def test_shares_are_taken_where_the_loss_of_a_mixture_is_the_mixture_of_losses(loss: nn.Module, pair: tuple) -> None:
    outputs = torch.rand(4, 3)
    of_mixture, mixture = loss(outputs, (pair[0] + pair[1]) / 2), (loss(outputs, pair[0]) + loss(outputs, pair[1])) / 2
    assert torch.allclose(of_mixture, mixture) is (targets_taken(loss) != "1 and -1")
