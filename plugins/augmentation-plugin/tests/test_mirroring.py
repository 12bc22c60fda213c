"""Test-time augmentation: what evaluations and predictions see against two forward passes by hand."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from augmentation_plugin import TestTimeAugmentation
from engine_core import Callback, Objective, Trainer

X, Y = torch.randn(6, 1, 4, 4, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 3
FLAT = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
MEAN = ((FLAT(X) + FLAT(X.flip(-1))) / 2).detach()


class Owner(nn.Module):
    """Has a loss of its own, and gets the whole batch."""

    def forward(self, batch):
        return {"logits": FLAT(batch[0])}

    def loss(self, outputs, batch):
        return F.cross_entropy(outputs["logits"], batch[1])


def trainer_of(model, **given):
    return Trainer(model, device="cpu", progress_bar=False, **{"algorithms": "test_time_augmentation", **given})


def loss_of(trainer, batch):
    with trainer:
        return trainer.eval([batch])["eval/loss"]


def test_loss_and_metrics_are_of_the_mean_of_both_outputs():
    expected = F.cross_entropy(MEAN, Y).item()
    by_name = {
        "algorithms": TestTimeAugmentation(input_key="x"),
        "objective": Objective(F.cross_entropy, inputs="x", targets="y"),
    }
    assert loss_of(trainer_of(FLAT, loss_fn=F.cross_entropy), (X, Y)) == pytest.approx(expected)
    assert loss_of(trainer_of(Owner()), (X, Y)) == pytest.approx(expected)
    assert loss_of(trainer_of(FLAT, **by_name), {"x": X, "y": Y}) == pytest.approx(expected)
    assert F.cross_entropy(FLAT(X), Y).item() != pytest.approx(expected)


class Seen(Callback):
    """Takes the batch of each evaluation step at its end."""

    def __init__(self):
        self.batches = []

    def eval_batch_end(self, state, logger):
        self.batches.append(state.batch)


@pytest.mark.parametrize("batch", [X, [X], (X, Y)])
@pytest.mark.parametrize("loss_fn", [F.cross_entropy, None])
def test_predictions_are_averaged_too_and_the_batch_is_put_back(batch, loss_fn):
    seen = Seen()
    with trainer_of(FLAT, loss_fn=loss_fn, callbacks=seen) as trainer:
        (found,) = trainer.predict([batch])
    assert torch.equal(found, MEAN)
    assert [each is batch for each in seen.batches] == [True]


@pytest.mark.parametrize(
    ("model", "batch", "message"),
    [
        (nn.Conv2d(1, 3, 1), (X, X), r"gave a tensor \(6, 3, 4, 4\) of torch.float32: .*places, .* mirrored back"),
        (FLAT, (X[:, 0], Y), r"the input of test_time_augmentation .*\(6, 4, 4\): give greyscale images"),
        (nn.Identity(), ("text", Y), "the model gave 'text': let it return logits alone"),
    ],
)
def test_what_can_not_be_averaged_is_refused(model, batch, message):
    with pytest.raises((ValueError, TypeError), match=message), trainer_of(model, loss_fn=F.cross_entropy) as trainer:
        list(trainer.predict([batch]))
