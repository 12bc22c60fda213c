"""What is logged and predicted beside the algorithms that change targets, gradients and weights."""

import pytest
import torch
from torch import nn

from engine_core import Trainer
from engine_core_author import RecordingDestination

GENERATOR = torch.Generator().manual_seed(1)
BATCHES = [(torch.randn(8, 4, generator=GENERATOR), torch.randint(3, (8,), generator=GENERATOR)) for _ in range(3)]


class Right:
    def reset(self):
        self.right = self.seen = 0

    def update(self, outputs, targets):
        self.right, self.seen = self.right + int((outputs.argmax(1) == targets).sum()), self.seen + len(targets)

    def compute(self):
        return self.right / self.seen


def trained(**settings):
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = nn.Linear(4, 3)
    memory = RecordingDestination()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    given = {"loss_fn": nn.CrossEntropyLoss(), "optimizers": sgd, "metrics": {"right": Right()}, "loggers": memory}
    given |= {"callbacks": ["train_metrics", "gradient_norm"], "seed": 1, "device": "cpu", "progress_bar": False}
    made = Trainer(model, BATCHES, max_duration="1ep", **given, **settings)
    made.fit()
    return made, memory


def values(memory, name):
    return [metrics[name] for _, metrics in memory.metrics if name in metrics]


def test_metrics_see_the_targets_from_before_they_are_smoothed_and_no_mixed_batch():
    (plain,) = values(trained()[1], "train/right")
    (smoothed,) = values(trained(algorithms="label_smoothing")[1], "train/right")
    assert 0 < plain < 1 and 0 < smoothed < 1
    with pytest.warns(UserWarning, match="train_metrics leaves out the batches in which MixUp mixes targets"):
        assert values(trained(algorithms=["label_smoothing", "mixup"])[1], "train/right") == []


def test_with_sam_each_row_counts_once_and_the_norm_is_that_of_its_second_pass():
    made, memory = trained(algorithms=[("sam", {"rho": 0.5})], grad_clip_norm=0.2)
    assert len(values(memory, "train/right")) == 1
    assert round(values(memory, "train/right")[0] * 24, 6).is_integer()
    norm = torch.cat([p.grad.flatten() for p in made.state.model.parameters()]).norm().item()
    assert values(memory, "train/gradient_norm_clipped")[-1] == pytest.approx(norm)
