"""With ChannelsLast on a CPU, a GroupNorm that would crash the process is refused by name, and only such a one."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from engine_core import Trainer
from engine_core.errors import ArgumentError
from surgery_plugin import ChannelsLast


def fit(model: nn.Module, size: int = 6, layout: Any = torch.contiguous_format, **settings: Any) -> Trainer:
    """Train on three batches of images with four channels."""
    data = [(torch.randn(4, 4, size, size).to(memory_format=layout), torch.randn(4, 4)) for _ in range(3)]
    given = {"max_duration": "1ep", "loss_fn": lambda y, t: F.mse_loss(y.flatten(2).mean(2), t), "device": "cpu"}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Trainer(model, data, optimizers=optimizer, algorithms=ChannelsLast(), **{**given, **settings}) as trainer:
        trainer.fit()
    return trainer


def conv(*, trains: bool = True, size: int = 3) -> nn.Module:
    return nn.Conv2d(4, 4, size).requires_grad_(trains)


def norm(*, trains: bool = True) -> nn.Module:
    return nn.GroupNorm(2, 4).requires_grad_(trains)


class FrozenPart(nn.Module):
    """Its first part runs without gradients, though it could train."""

    def __init__(self, size: int = 3) -> None:
        super().__init__()
        self.frozen, self.norm, self.last = conv(size=size), norm(), nn.Conv2d(4, 4, 1)

    def forward(self, x: torch.Tensor) -> Any:
        with torch.no_grad():
            x = self.frozen(x)
        return self.last(self.norm(x))


class DefinedFirst(nn.Module):
    """Its norm is defined first, and used behind a convolution that trains."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv = norm(), conv()

    def forward(self, x: torch.Tensor) -> Any:
        return self.norm(self.conv(x))


REFUSED: dict[str, tuple[Any, str]] = {
    "the first layer": (lambda: nn.Sequential(norm(), conv()), "0"),
    "behind what the user froze": (lambda: nn.Sequential(conv(trains=False), nn.Sequential(norm(), conv())), "1.0"),
    "behind what runs without gradients": (FrozenPart, "norm"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_norm_that_would_crash_is_refused_by_name_before_anything_is_trained(kind: str) -> None:
    make, name = REFUSED[kind]
    model = make()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with pytest.raises(ArgumentError) as refused:
        fit(model, layout=torch.channels_last)
    assert str(refused.value) == (
        f"channels_last: the GroupNorm {name!r} trains, and its input needs no gradient; on a CPU, torch crashes in "
        f"the backward pass of such a norm in this memory format: freeze {name!r} too, train a layer before it, or "
        "leave out channels_last"
    )
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(not module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Sequential(conv(), norm(), conv()),
        lambda: nn.Sequential(conv(trains=False), norm(trains=False), conv(), norm()),
        lambda: nn.Sequential(norm(), conv()),
        DefinedFirst,
        lambda: nn.Sequential(conv(trains=False), nn.GroupNorm(2, 4, affine=False), conv()),
    ],
)
def test_all_others_train_and_keep_no_hook(make: Any) -> None:
    model = make()
    trainer = fit(model, eval_dataloader=[(torch.randn(4, 4, 6, 6), torch.randn(4, 4))], size=8)
    assert trainer.state.timestamp.batch == 3
    assert all(not module._forward_pre_hooks for module in model.modules())


def test_the_check_is_for_this_format_only() -> None:
    class Contiguous(FrozenPart):
        def forward(self, x: torch.Tensor) -> Any:
            return self.last(self.norm(self.frozen(x).detach().contiguous()))

    assert fit(Contiguous()).state.timestamp.batch == 3


@pytest.mark.full
def test_torch_crashes_where_it_is_refused() -> None:
    """If this fails, torch has mended its fault, and what this file tests can go."""
    code = (
        "import torch\n"
        "x = torch.randn(4, 4, 6, 6).to(memory_format=torch.channels_last)\n"
        "torch.nn.GroupNorm(2, 4)(x).sum().backward()\n"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode < 0
