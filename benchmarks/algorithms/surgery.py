"""surgery-plugin, by hand: models made of hand-written layers from the start, in the plain loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from nets import BasicBlock, resnet, transformer
from sides import Case, plain_bf16
from torch import nn
from torch.nn import functional as F

from surgery_plugin import (
    BlurPool,
    ChannelsLast,
    FusedLayerNorm,
    GatedLinearUnits,
    LogitSoftCap,
    SqueezeExcite,
    StochasticDepth,
)


class Blur(nn.Module):
    """The binomial filter with a stride."""

    def __init__(self, channels: int, stride: int = 2) -> None:
        super().__init__()
        self.stride = stride
        taps = torch.tensor([1.0, 2.0, 1.0])
        kernel = (taps[:, None] * taps / 16).expand(channels, 1, 3, 3).contiguous()
        self.register_buffer("kernel", kernel, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.conv2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), self.kernel, stride=self.stride, groups=x.shape[1])


def blurred_conv(width: int, out: int, kernel: int, stride: int, padding: int = 0, *, bias: bool) -> nn.Module:
    """Return a convolution, one that blurs first if it has a stride; for pointwise ones the blur has it."""
    if stride == 1:
        return nn.Conv2d(width, out, kernel, 1, padding, bias=bias)
    if kernel == 1:
        return nn.Sequential(Blur(width), nn.Conv2d(width, out, 1, bias=bias))
    return nn.Sequential(Blur(width, 1), nn.Conv2d(width, out, kernel, stride, padding, bias=bias))


def blurred_pool(size: int) -> nn.Module:
    """Return a max-pool that blurs."""
    return nn.Sequential(nn.MaxPool2d(size, 1), Blur(16))


class Excited(nn.Module):
    """A convolution with gates on its channels."""

    def __init__(self, width: int, out: int, *settings: Any, **options: Any) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, out, *settings, **options)
        self.squeeze, self.excite = nn.Linear(out, out // 4, bias=False), nn.Linear(out // 4, out, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x)
        gates = torch.sigmoid(self.excite(F.relu(self.squeeze(x.mean((2, 3))))))
        return x * gates[:, :, None, None]


def excited_conv(width: int, out: int, *settings: Any, **options: Any) -> nn.Module:
    """Return a convolution, with gates if it has 32 channels or more."""
    return (Excited if min(width, out) >= 32 else nn.Conv2d)(width, out, *settings, **options)


def stochastic_blocks(generator: torch.Generator) -> Callable[..., nn.Module]:
    """Return a class of blocks that drop out, the last with probability 1/5; those that change the shape only draw."""
    made: list[BasicBlock] = []

    class Dropping(BasicBlock):
        def __init__(self, *settings: Any) -> None:
            super().__init__(*settings)
            made.append(self)
            self.rate = 0.2 * len(made) / 3

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            kept = torch.rand(len(x), generator=generator) >= self.rate
            out = super().forward(x)
            if out.shape != x.shape:
                return out
            return torch.where(kept[:, None, None, None], x + (out - x) / (1 - self.rate), x)

    return Dropping


class Gated(nn.Module):
    """The feed-forward part with a gate."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.gate = nn.Linear(width, 4 * width), nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)) * self.gate(x))


class HalfNorm(nn.LayerNorm):
    """LayerNorm in bfloat16."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dtype = torch.bfloat16
        with torch.autocast("cpu", enabled=False):
            return F.layer_norm(x.to(dtype), (64,), self.weight.to(dtype), self.bias.to(dtype), self.eps)


class Capped(nn.Linear):
    """A linear layer whose outputs are bent into (-30, 30)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 30.0 * torch.tanh(super().forward(x) / 30.0)


def capped() -> nn.Module:
    """Return the transformer with such a head."""
    model = transformer()
    model[-1] = Capped(model[-1].in_features, model[-1].out_features)
    return model


CASES = {
    "logit_soft_cap": Case(lambda: [LogitSoftCap()], net=transformer, hand_net=lambda _: capped()),
    "blurpool": Case(lambda: [BlurPool()], hand_net=lambda _: resnet(conv=blurred_conv, pool=blurred_pool)),
    "squeeze_excite": Case(
        lambda: [SqueezeExcite(min_channels=32, latent_channels=0.25)], hand_net=lambda _: resnet(conv=excited_conv)
    ),
    "stochastic_depth": Case(
        lambda: [StochasticDepth()], hand_net=lambda own: resnet(block=stochastic_blocks(own("stochastic_depth")))
    ),
    "channels_last": Case(lambda: [ChannelsLast()], hand_net=lambda _: resnet().to(memory_format=torch.channels_last)),
    "gated_linear_units": Case(
        lambda: [GatedLinearUnits()], net=transformer, hand_net=lambda _: transformer(feed=Gated)
    ),
    "fused_layernorm": Case(
        lambda: [FusedLayerNorm()],
        plain_bf16,
        net=transformer,
        hand_net=lambda _: transformer(norm=HalfNorm),
        plain=plain_bf16,
        precision="amp_bf16",
    ),
}
