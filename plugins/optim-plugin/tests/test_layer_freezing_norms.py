"""On a CPU, in channels_last, a GroupNorm is frozen with the layer before it, or torch would crash the process."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from engine_core import Callback, Trainer
from optim_plugin import LayerFreezing, freeze_layers, trainable_layers

CHANNELS_LAST = torch.channels_last


def make_net():
    return nn.Sequential(
        nn.Conv2d(4, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 1)
    )


def frozen(model):
    return [place for place, layer in enumerate(model) if any(not p.requires_grad for p in layer.parameters())]


def counts(model, batch_format=torch.contiguous_format):
    """Return which layers are frozen after each of ten batches."""
    seen = []
    recorder = type("Recorder", (Callback,), {"batch_end": lambda *_: seen.append(frozen(model))})()
    data = [(torch.randn(2, 4, 6, 6).to(memory_format=batch_format), torch.randn(2, 4, 2, 2)) for _ in range(10)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = {"max_duration": "1ep", "loss_fn": nn.MSELoss(), "algorithms": LayerFreezing(start=0.1)}
    with Trainer(model, data, optimizers=optimizer, callbacks=recorder, device="cpu", **given) as trainer:
        trainer.fit()
    return seen


PLAIN = [[]] * 3 + [[0]] * 2 + [[0, 1]] * 2 + [[0, 1, 3]] * 2 + [[0, 1, 3, 4]]
TOGETHER = [[]] * 3 + [[0, 1]] * 4 + [[0, 1, 3, 4]] * 3


def test_in_the_usual_format_each_layer_is_frozen_when_it_is_due():
    assert counts(make_net()) == PLAIN


class Block(nn.Module):
    """Uses its norm before a layer that trains; RAFT, for one, defines the convolutions of a block before its norms."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.norm = nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3), nn.GroupNorm(2, 4)

    def __iter__(self):
        return self.children()

    def forward(self, x):
        return self.two(self.norm(self.one(x)))


HERE = """
import torch, test_layer_freezing_norms as here

torch.manual_seed(0), torch.set_num_threads(1)
print(here.counts(here.make_net().to(memory_format=here.CHANNELS_LAST)))
print(here.counts(here.make_net(), here.CHANNELS_LAST))
block = here.Block().to(memory_format=here.CHANNELS_LAST)
here.counts(block)
print([name for name, p in block.named_parameters() if p.requires_grad], len(block.norm._forward_pre_hooks))
"""


def test_in_channels_last_weights_or_batches_a_norm_is_frozen_with_the_layer_before_it():
    """In a process of its own, which torch may crash; one that is used before a layer that trains trains on."""
    code = f"import sys; sys.path[:0] = {[*sys.path, str(Path(__file__).parent)]!r}\n{HERE}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    block = "['two.weight', 'two.bias', 'norm.weight', 'norm.bias'] 1"
    assert (done.returncode, done.stdout.splitlines()) == (0, [str(TOGETHER), str(TOGETHER), block]), done.stderr


@pytest.mark.parametrize(
    ("fraction", "expected"), [(0.0, []), (0.2, [0, 1]), (0.4, [0, 1]), (0.6, [0, 1, 3, 4]), (1.0, [0, 1, 3, 4])]
)
def test_the_function_does_so_too(fraction, expected):
    model = make_net().to(memory_format=CHANNELS_LAST)
    assert freeze_layers(model, fraction, trainable_layers(model)) == [str(place) for place in expected]
    assert frozen(model) == expected


def test_if_only_norms_would_be_left_the_layer_before_them_still_trains():
    model = nn.Sequential(nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3), nn.GroupNorm(2, 4), nn.GroupNorm(2, 4))
    model.to(memory_format=CHANNELS_LAST)
    assert freeze_layers(model, 1.0) == ["0"]


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("channels", [1, 4])
def test_the_format_is_told_by_the_strides(size, channels):
    def net():
        return nn.Sequential(nn.Conv2d(channels, 4, size), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(4, 4))

    assert freeze_layers(net(), 0.4) == ["0"]
    is_told = channels * size > 1
    assert freeze_layers(net().to(memory_format=CHANNELS_LAST), 0.4) == (["0", "1"] if is_told else ["0"])
