"""channels_last and layer_freezing on a net with GroupNorms: torch's fault, which crashes the process, stays away."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys, torch
from torch import nn
from engine_core import Trainer

torch.manual_seed(0)
torch.set_num_threads(1)

class Unordered(nn.Module):  # its norm is defined last, and used behind the first layer that is frozen
    def __init__(self):
        super().__init__()
        self.one, self.two, self.norm = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 3, 3), nn.GroupNorm(2, 8)

    def forward(self, x):
        return self.two(self.norm(self.one(x))).mean((2, 3))

parts = [nn.Conv2d(1, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.GroupNorm(2, 8), nn.ReLU()]
kind, *names = sys.argv[1:]
ordered = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
model = ordered if kind == "ordered" else Unordered()
with Trainer(
    model,
    [(torch.randn(8, 1, 8, 8), torch.randint(3, (8,))) for _ in range(4)],
    max_duration="2ep",
    loss_fn=nn.CrossEntropyLoss(),
    optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
    algorithms=names,
    device="cpu",
) as trainer:
    trainer.fit()
print([place for place, part in enumerate(model.children()) for p in part.parameters() if not p.requires_grad])
"""


@pytest.mark.parametrize(
    ("names", "frozen"),
    [
        (["channels_last", "layer_freezing"], "[0, 0, 1, 1, 3, 3, 4, 4]"),
        (["layer_freezing", "channels_last"], "[0, 0, 1, 1, 3, 3, 4, 4]"),
        (["layer_freezing"], "[0, 0, 1, 1, 3, 3]"),
    ],
)
def test_a_group_norm_is_frozen_with_what_comes_before_it(names: list[str], frozen: str) -> None:
    given = [sys.executable, "-c", PROGRAM, "ordered", *names]
    done = subprocess.run(given, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, frozen), done.stderr


@pytest.mark.parametrize("names", [["channels_last", "layer_freezing"], ["layer_freezing", "channels_last"]])
def test_nor_is_one_refused_that_is_used_in_another_order_than_it_is_defined(names: list[str]) -> None:
    given = [sys.executable, "-c", PROGRAM, "unordered", *names]
    done = subprocess.run(given, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[0, 0]"), done.stderr
