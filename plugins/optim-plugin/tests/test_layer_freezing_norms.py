"""On a CPU, in channels_last, a GroupNorm is frozen with the layer before it, or torch would crash the process."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn

from engine_core import Callback, Trainer
from optim_plugin import LayerFreezing, freeze_layers, trainable_layers

CHANNELS_LAST = torch.channels_last


def make_net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(4, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 1)
    )


def frozen(model: nn.Sequential) -> list[int]:
    return [place for place, layer in enumerate(model) if any(not p.requires_grad for p in layer.parameters())]


def counts(model: nn.Sequential, batch_format: Any = torch.contiguous_format) -> list[list[int]]:
    """Return which layers are frozen after each of ten batches."""
    seen = []
    recorder = type("Recorder", (Callback,), {"batch_end": lambda *_: seen.append(frozen(model))})()
    data = [(torch.randn(2, 4, 6, 6).to(memory_format=batch_format), torch.randn(2, 4, 2, 2)) for _ in range(10)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Trainer(
        model,
        data,
        max_duration="1ep",
        loss_fn=nn.MSELoss(),
        optimizers=optimizer,
        algorithms=LayerFreezing(start=0.1),
        callbacks=recorder,
        device="cpu",
    ) as trainer:
        trainer.fit()
    return seen


PLAIN = [[]] * 3 + [[0]] * 2 + [[0, 1]] * 2 + [[0, 1, 3]] * 2 + [[0, 1, 3, 4]]
TOGETHER = [[]] * 3 + [[0, 1]] * 4 + [[0, 1, 3, 4]] * 3


def test_in_the_usual_format_each_layer_is_frozen_when_it_is_due() -> None:
    assert counts(make_net()) == PLAIN


def test_in_channels_last_weights_or_batches_a_norm_is_frozen_with_the_layer_before_it() -> None:
    """In a process of its own, which torch may crash."""
    code = (
        f"import sys; sys.path[:0] = {[*sys.path, str(__file__).rpartition('/')[0]]!r}\n"
        "import torch\n"
        "import test_layer_freezing_norms as here\n"
        "torch.manual_seed(0); torch.set_num_threads(1)\n"
        "print(here.counts(here.make_net().to(memory_format=here.CHANNELS_LAST)))\n"
        "print(here.counts(here.make_net(), here.CHANNELS_LAST))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()) == (0, [str(TOGETHER)] * 2), done.stderr


@pytest.mark.parametrize(
    ("fraction", "expected"), [(0.0, []), (0.2, [0, 1]), (0.4, [0, 1]), (0.6, [0, 1, 3, 4]), (1.0, [0, 1, 3, 4])]
)
def test_the_function_does_so_too(fraction: float, expected: list[int]) -> None:
    model: Any = make_net().to(memory_format=CHANNELS_LAST)
    assert freeze_layers(model, fraction, trainable_layers(model)) == [str(place) for place in expected]
    assert frozen(model) == expected


def test_if_only_norms_would_be_left_the_layer_before_them_still_trains() -> None:
    model: Any = nn.Sequential(nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3), nn.GroupNorm(2, 4), nn.GroupNorm(2, 4))
    model.to(memory_format=CHANNELS_LAST)
    assert freeze_layers(model, 1.0) == ["0"]


OTHER_ORDER = """
import sys, torch
from torch import nn
from engine_core import Trainer

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.norm = nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3), nn.GroupNorm(2, 4)

    def forward(self, x):
        return self.two(self.norm(self.one(x)))

torch.manual_seed(0)
model = Block().to(memory_format=torch.channels_last)
with Trainer(
    model,
    [(torch.randn(2, 4, 6, 6), torch.randn(2, 4, 2, 2)) for _ in range(10)],
    max_duration="1ep",
    loss_fn=nn.MSELoss(),
    optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
    algorithms=sys.argv[1:],
    device="cpu",
) as trainer:
    trainer.fit()
print([name for name, p in model.named_parameters() if p.requires_grad], len(model.norm._forward_pre_hooks))
"""


def test_a_norm_that_is_used_before_a_layer_that_trains_does_not_crash_either() -> None:
    """RAFT, for one, defines the convolutions of a block before its norms."""
    given = [sys.executable, "-c", OTHER_ORDER, "layer_freezing"]
    done = subprocess.run(given, capture_output=True, text=True, check=False)
    trained = "['two.weight', 'two.bias', 'norm.weight', 'norm.bias'] 1"
    assert (done.returncode, done.stdout.strip()) == (0, trained), done.stderr


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("channels", [1, 4])
def test_the_format_is_told_by_the_strides(size: int, channels: int) -> None:
    def net() -> Any:
        return nn.Sequential(nn.Conv2d(channels, 4, size), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(4, 4))

    assert freeze_layers(net(), 0.4) == ["0"]
    is_told = channels * size > 1
    assert freeze_layers(net().to(memory_format=CHANNELS_LAST), 0.4) == (["0", "1"] if is_told else ["0"])
