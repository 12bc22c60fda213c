"""The net of the study: four convolutions with BatchNorm, for images of any size."""

from __future__ import annotations

from torch import nn


def _conv(width: int, out: int, stride: int) -> list[nn.Module]:
    return [nn.Conv2d(width, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]


def conv_net(stride: int) -> nn.Module:
    """Return a net of 39,000 parameters whose first convolution has that stride."""
    layers = [*_conv(1, 16, stride), *_conv(16, 32, 1), *_conv(32, 32, 2), *_conv(32, 64, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(64 * 9, 10))
