"""What MixUp and CutMix do to a training on scikit-learn's digits: what their README says of it."""

from typing import NamedTuple

import pytest
import torch
from augmentation_parts import digits, train_on_digits

from augmentation_plugin import CutMix, MixUp


class Trained(NamedTuple):
    losses: list[float]
    loss: float
    accuracy: float
    confidence: float


@torch.no_grad()
def trained(algorithms=()):
    """Return the training losses, the mean of the last ones, and accuracy and confidence on digits held out."""
    with torch.enable_grad():
        steps, run = train_on_digits(algorithms, max_duration="11ep")
    images, classes = digits()
    probabilities = run.state.model(images[512:]).softmax(1)
    accuracy = (probabilities.argmax(1) == classes[512:]).float().mean().item()
    return Trained(steps.losses, sum(steps.losses[-20:]) / 20, accuracy, probabilities.max(1).values.mean().item())


@pytest.mark.full
def test_the_training_loss_is_higher_and_the_net_less_sure_and_as_right_in_either_form():
    plain, mixup, cutmix = trained(), trained(MixUp(1.0)), trained(CutMix())
    for mixed in (mixup, cutmix):
        assert mixed.loss > 1.5 * plain.loss
        assert mixed.confidence < plain.confidence
        assert mixed.accuracy > plain.accuracy - 0.03
    assert trained(CutMix(interpolate_loss=True)).losses == pytest.approx(cutmix.losses, rel=0.02)
