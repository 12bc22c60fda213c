"""What label smoothing does to a training on scikit-learn's digits, as the README says."""

import pytest
import torch
from parts import trainer
from torch.nn import functional as F

from labels_plugin import LabelSmoothing

digits = pytest.importorskip("engine_core.examples.digits", reason="needs scikit-learn", exc_type=Exception)


def trained(smoothing):
    """Return the logits and labels of the test digits after 4 epochs, and the loss that the evaluation gave."""
    torch.manual_seed(11)
    model, test = digits.DigitsNet(8), list(digits.make_loader("test", 1000))
    given = {"optimizers": torch.optim.Adam(model.parameters(), lr=0.01), "eval_dataloader": test, "seed": 11}
    algorithm = LabelSmoothing(smoothing)
    with trainer(digits.make_loader("train"), model, max_duration="4ep", algorithms=algorithm, **given) as made:
        made.fit()
        loss = made.state.metrics["eval/loss"]
    model.eval()
    with torch.no_grad():
        return model(test[0][0]), test[0][1], loss


def entropy(logits):
    return float(torch.distributions.Categorical(logits=logits).entropy().mean())


def confidence(logits):
    return float(logits.softmax(1).amax(1).mean())


def test_outputs_are_less_sure_and_as_often_right_and_their_evaluation_is_of_the_labels():
    plain, labels, _ = trained(0.0)
    smoothed, _, measured = trained(0.2)
    assert confidence(smoothed) < 0.8 + 0.2 / 10 < confidence(plain)  # what the targets ask for
    assert entropy(smoothed) > 3 * entropy(plain)
    right = [float((logits.argmax(1) == labels).double().mean()) for logits in (plain, smoothed)]
    assert min(right) > 0.95
    assert measured == pytest.approx(F.cross_entropy(smoothed, labels).item(), rel=1e-4)
