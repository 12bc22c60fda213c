"""Squeeze-and-excitation: channels weighted by their content (Hu et al. 2018). Independent of the engine."""

from __future__ import annotations

import math

import torch
from torch import nn

from engine_core.arguments import check_number, check_whole
from engine_core.errors import ArgumentError

__all__ = ["SqueezeExcite2d", "SqueezeExciteConv2d", "check_latent_channels"]


def check_latent_channels(latent_channels: float) -> float:
    """Return a whole number of channels, or a fraction of them below 1.

    Raises:
        ArgumentTypeError: (a TypeError) for anything but a number.
        ArgumentError: (a ValueError) for a number that is neither.
    """
    number = check_number("latent_channels", latent_channels, "(0, inf)", "channels, or a fraction of them below 1")
    if number >= 1 and not number.is_integer():
        raise ArgumentError(
            f"latent_channels={latent_channels!r} has to be whole, or a fraction of the channels below 1"
        )
    return number


class SqueezeExcite2d(nn.Module):
    """Multiply each channel by a gate in (0, 1), computed from the means of all channels.

    `y = x * sigmoid(W2 relu(W1 mean(x)))`, the mean over height and width. Source: Hu et al. 2018,
    Squeeze-and-Excitation Networks, arXiv 1709.01507.

    Args:
        latent_channels: the size of the hidden layer, as a whole number, or below 1 as a fraction of `channels`,
            rounded down, but at least 1.
        generator: on the CPU, for the initial weights, as in `nn.Linear`; None: torch's global one.

    Raises:
        ArgumentError, ArgumentTypeError: (a ValueError, a TypeError) for impossible numbers.

    Example:
        >>> layer = SqueezeExcite2d(64, latent_channels=0.25)
        >>> layer.squeeze.out_features
        16
        >>> layer(torch.randn(2, 64, 7, 7)).shape
        torch.Size([2, 64, 7, 7])
    """

    def __init__(self, channels: int, latent_channels: float = 64, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        check_whole("channels", channels, "[1, inf)", "the channels of the input")
        latent = check_latent_channels(latent_channels)
        size = int(latent) if latent >= 1 else max(1, math.floor(latent * channels + 1e-9))
        self.squeeze = _linear(channels, size, generator)
        self.excite = _linear(size, channels, generator)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return images like `x`, (n, c, h, w) or (c, h, w)."""
        means = x.mean((-2, -1))  # (n, c)
        gates = torch.sigmoid(self.excite(torch.relu(self.squeeze(means))))  # (n, c)
        return x * gates[..., None, None]


class SqueezeExciteConv2d(nn.Module):
    """A convolution followed by squeeze-and-excitation.

    Args:
        conv: gives images (n, out_channels, h, w).
        latent_channels, generator: see `SqueezeExcite2d`.

    Example:
        >>> SqueezeExciteConv2d(nn.Conv2d(8, 16, 3), latent_channels=4)(torch.randn(1, 8, 5, 5)).shape
        torch.Size([1, 16, 3, 3])
    """

    def __init__(
        self, conv: nn.Conv2d, latent_channels: float = 64, *, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.conv = conv
        gates = SqueezeExcite2d(conv.out_channels, latent_channels, generator=generator)
        self.squeeze_excite = gates.to(conv.weight.device, conv.weight.dtype)
        self.train(conv.training)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return images (n, out_channels, h, w)."""
        gated: torch.Tensor = self.squeeze_excite(self.conv(x))
        return gated


def _linear(inputs: int, outputs: int, generator: torch.Generator | None) -> nn.Linear:
    """Return a layer without bias, its weights drawn from the generator as `nn.Linear` draws them."""
    layer = nn.Linear(inputs, outputs, bias=False, device="meta")  # where nothing is drawn
    bound = 1 / math.sqrt(inputs)
    weight = torch.empty(outputs, inputs, device="cpu").uniform_(-bound, bound, generator=generator)
    layer.weight = nn.Parameter(weight)
    return layer
