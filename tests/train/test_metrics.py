"""Metrics: objects with update, compute and reset, by name."""

import re

import pytest
from torch import nn

from engine_core import Trainer
from engine_core.errors import ArgumentError, ArgumentTypeError

from .parts import batches, linear, trainer


@pytest.fixture
def torchmetrics():
    """Import it for the tests that use it, not when all others are collected: that takes seconds."""
    return pytest.importorskip("torchmetrics", reason="needs the extra 'metrics'")


class Accuracy:
    """By hand, with a count of its resets."""

    def __init__(self):
        self.resets = 0

    def reset(self):
        self.resets += 1
        self.right = self.seen = 0

    def update(self, outputs, targets):
        self.right += int((outputs.argmax(1) == targets).sum())
        self.seen += len(targets)

    def compute(self):
        return self.right / self.seen


DATA = batches(8, 8, 3)


def accuracy_by_hand():
    return sum(int((linear()(inputs).argmax(1) == targets).sum()) for inputs, targets in DATA) / 19


def test_a_metric_is_reset_for_each_loader_and_each_evaluation():
    metric = Accuracy()
    made = trainer(eval_dataloader={"a": DATA, "b": DATA}, metrics={"accuracy": metric})
    first, second = made.eval(), made.eval()
    assert first == second
    assert first["a/accuracy"] == first["b/accuracy"] == accuracy_by_hand()
    assert metric.resets == 4


def test_in_mixed_precision_metrics_get_float32():
    class OfNumPy(Accuracy):
        def update(self, outputs, targets):
            assert outputs.numpy().dtype == "float32"
            super().update(outputs, targets)

    made = trainer(eval_dataloader=DATA, precision="amp_bf16", metrics={"right": OfNumPy()})
    made.fit()
    assert "eval/right" in made.state.metrics


def test_a_metric_collection_works_as_a_metric_and_as_the_mapping(torchmetrics):
    def collection():
        of = torchmetrics.classification
        kinds = {"acc": of.MulticlassAccuracy, "f1": of.MulticlassF1Score}
        return torchmetrics.MetricCollection({name: kind(3, average="micro") for name, kind in kinds.items()})

    one = trainer(eval_dataloader=DATA, metrics={"all": collection()}).eval()
    many = trainer(eval_dataloader=DATA, metrics=collection()).eval()
    assert [one["eval/all/acc"], one["eval/all/f1"]] == [many["eval/acc"], many["eval/f1"]]
    assert many["eval/acc"] == pytest.approx(accuracy_by_hand())


def test_torchmetrics_say_themselves_what_is_better(torchmetrics):
    parts = {"x": torchmetrics.MeanAbsoluteError(), "y": torchmetrics.R2Score(), "z": torchmetrics.MeanMetric()}
    made = trainer(eval_dataloader=DATA, metrics={**parts, "all": torchmetrics.MetricCollection(parts, prefix="of_")})
    assert made.state.results.higher_is_better == {"x": False, "y": True, "all/of_x": False, "all/of_y": True}


OWN = {"train_dataloader": DATA, "model": type("OwnLoss", (nn.Linear,), {"loss": print})(4, 3), "loss_fn": None}
LACKS = (
    "metric 'acc' (Identity) has no update, no compute and no reset; a metric has update(outputs, targets), compute() "
)


@pytest.mark.parametrize(
    ("metrics", "settings", "message"),
    [
        ({"acc": nn.Identity()}, {}, LACKS),
        ({"acc": Accuracy}, {}, "metric 'acc' is the class Accuracy; write Accuracy(...)"),
        ([3], {}, "metrics has to map names to objects, as {'accuracy': ...}, not [3]"),
        ({"loss": Accuracy()}, {}, "a metric can't be called 'loss': '<label>/loss' is the loss function's; rename it"),
        (
            {"accuracy": Accuracy()},
            OWN,
            "OwnLoss has its own loss, so its metrics need a method eval_forward(batch) -> ",
        ),
    ],
    ids=["no metric", "a class", "no mapping", "taken name", "own loss"],
)
def test_anything_but_a_metric_is_refused_when_the_trainer_is_made(metrics, settings, message):
    with pytest.raises((ArgumentError, ArgumentTypeError), match=f"^{re.escape(message)}"):
        Trainer(**{"model": linear(), "loss_fn": nn.CrossEntropyLoss(), **settings}, metrics=metrics)
