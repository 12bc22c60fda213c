"""Low-pass filtering before subsampling, and the two layers that do it (Zhang 2019). Independent of the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from engine_core.arguments import check_flag
from engine_core.errors import ArgumentTypeError

__all__ = ["BlurConv2d", "BlurMaxPool2d", "blur_2d"]

HEIGHT, WIDTH = -2, -1


def blur_2d(x: torch.Tensor, stride: int | Sequence[int] = 1, along: Sequence[int] = (HEIGHT, WIDTH)) -> torch.Tensor:
    """Blur images with the binomial filter [1, 2, 1] / 4 along height and width, and keep each stride-th value.

    Source: Zhang 2019, Making Convolutional Networks Shift-Invariant Again, arXiv 1904.11486. Each channel is blurred
    by itself. Images are padded by reflection, so that a constant one stays constant up to its borders; along an axis
    of length 1 there is nothing to blur.

    Args:
        x: images (n, c, h, w) or (c, h, w).
        stride: for height and width, or one number for both.
        along: the axes that are blurred: -2 is the height, -1 the width.

    Returns:
        Images of `ceil(h / stride)` by `ceil(w / stride)`.

    Raises:
        ArgumentTypeError: (a TypeError) for images of integers.

    Example:
        >>> blur_2d(torch.tensor([[[0.0, 0.0, 4.0, 0.0, 0.0]]]))
        tensor([[[0., 1., 2., 1., 0.]]])
        >>> blur_2d(torch.ones(1, 7, 8), stride=2).shape
        torch.Size([1, 4, 4])
    """
    steps = (stride, stride) if isinstance(stride, int) else tuple(stride)
    return _filtered(x, _binomial(along, x.device, x.dtype), steps)


def _binomial(
    along: Sequence[int], device: torch.device | None = None, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Return the filter (3, 3), or size 1 for an axis that is not blurred; built on its device, as copies take time."""
    height, width = (3 if axis in along else 1 for axis in (HEIGHT, WIDTH))
    taps = torch.full((height, width), 1 / ((height + 1) * (width + 1)), device=device, dtype=dtype)
    taps[height // 2] *= 2
    taps[:, width // 2] *= 2
    return taps


def _filtered(x: torch.Tensor, taps: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    if not (x.is_floating_point() or x.is_complex()):
        raise ArgumentTypeError(
            f"images of {x.dtype} can't be blurred, as the filter has fractions: give floating-point ones, such as "
            "x.float() / 255"
        )
    for axis in (HEIGHT, WIDTH):
        if x.shape[axis] == 1:
            taps = taps.sum(axis, keepdim=True)
    height, width = taps.shape
    channels = x.shape[-3]
    weight = taps.to(x).expand(channels, 1, height, width)
    return F.conv2d(_reflected(x, height // 2, width // 2), weight, stride=stride, groups=channels)


def _reflected(x: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Pad images with `height` rows and `width` columns of reflection on each side."""
    if x.is_cuda and torch.are_deterministic_algorithms_enabled():
        return _reflected_piecewise(x, height, width)
    return F.pad(x, (width, width, height, height), mode="reflect")


def _reflected_piecewise(x: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Do the same, more slowly, where torch's reflection has no deterministic backward pass."""
    if height:
        x = torch.cat([x[..., 1:2, :], x, x[..., -2:-1, :]], HEIGHT)
    if width:
        x = torch.cat([x[..., 1:2], x, x[..., -2:-1]], WIDTH)
    return x


class _Blurring(nn.Module):
    """Hold the filter of a strided layer: a buffer, so that it moves with the layer, but is not saved."""

    taps: torch.Tensor

    def _hold_taps(self, stride: Sequence[int], like: torch.Tensor | None = None) -> None:
        self._blurred = [axis for axis, step in zip((HEIGHT, WIDTH), stride, strict=True) if step > 1]
        taps = _binomial(self._blurred) if like is None else _binomial(self._blurred, like.device, like.dtype)
        self.register_buffer("taps", taps, persistent=False)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> _Blurring:  # noqa: FBT001, FBT002
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.taps = _binomial(self._blurred, self.taps.device, self.taps.dtype)  # `to_empty` leaves no values
        return self


class BlurConv2d(_Blurring, nn.Conv2d):
    """Blur, and convolve with a stride; or convolve at each place, blur the result, and keep each stride-th value.

    Source: Zhang 2019, arXiv 1904.11486, which blurs last. Arguments, parameters and output size are those of
    `torch.nn.Conv2d`; only axes with a stride above 1 are blurred.

    Args:
        blur_first: blur what is convolved; else what comes out of it, which costs stride * stride times as much.

    Example:
        >>> layer = BlurConv2d(2, 4, kernel_size=3, stride=2, padding=1)
        >>> layer(torch.randn(1, 2, 9, 8)).shape
        torch.Size([1, 4, 5, 4])
    """

    def __init__(self, *settings: Any, blur_first: bool = True, **options: Any) -> None:
        super().__init__(*settings, **options)
        self.blur_first = check_flag("blur_first", blur_first)
        self._hold_taps(self.stride, self.weight)

    @classmethod
    def from_conv(cls, conv: nn.Conv2d, *, blur_first: bool = True) -> BlurConv2d:
        """Return the layer that replaces `conv`, with the same parameter objects."""
        given: Any = conv  # torch declares sizes as tuples of any length, but asks for pairs
        made = cls(
            conv.in_channels,
            conv.out_channels,
            given.kernel_size,
            given.stride,
            given.padding,
            given.dilation,
            conv.groups,
            padding_mode=given.padding_mode,
            blur_first=blur_first,
            device="meta",  # where no initial weights are drawn
        )
        made.weight, made.bias, made.training = conv.weight, conv.bias, conv.training
        made._hold_taps(conv.stride, conv.weight)
        return made

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002  torch's name
        """Return images (n, out_channels, h, w)."""
        if self._is_pointwise():  # both orders give the same, and only the places that are kept have to be computed
            return self._dense(_filtered(input, self.taps, self.stride))
        if self.blur_first:
            return super().forward(_filtered(input, self.taps, (1, 1)))
        return _filtered(self._dense(input), self.taps, self.stride)

    def extra_repr(self) -> str:
        """Return the settings."""
        settings: str = super().extra_repr()  # type: ignore[no-untyped-call]
        return settings if self.blur_first else f"{settings}, blur_first=False"

    def _is_pointwise(self) -> bool:
        padding = (0,) if self.padding == "valid" else self.padding
        return set(self.kernel_size) == {1} and set(padding) == {0}

    def _dense(self, x: torch.Tensor) -> torch.Tensor:
        """Return the convolution with stride 1."""
        padding = self.padding
        if self.padding_mode != "zeros":
            x = F.pad(x, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = (0, 0)
        return F.conv2d(x, self.weight, self.bias, 1, padding, self.dilation, self.groups)


class BlurMaxPool2d(_Blurring, nn.MaxPool2d):
    """Take the maximum at each place, blur the result, and keep each stride-th value.

    Source: Zhang 2019, arXiv 1904.11486. Arguments and output size are those of `torch.nn.MaxPool2d`, without
    `return_indices`; only axes with a stride above 1 are blurred.

    Example:
        >>> BlurMaxPool2d(2)(torch.randn(1, 3, 8, 9)).shape
        torch.Size([1, 3, 4, 4])
    """

    def __init__(self, *settings: Any, **options: Any) -> None:
        super().__init__(*settings, **options)
        self._hold_taps(_pair(self.stride))

    @classmethod
    def from_pool(cls, pool: nn.MaxPool2d) -> BlurMaxPool2d:
        """Return the layer that replaces `pool`."""
        made = cls(pool.kernel_size, pool.stride, pool.padding, pool.dilation, ceil_mode=pool.ceil_mode)
        made.training = pool.training
        return made

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002  torch's name
        """Return images (n, c, h, w)."""
        return _filtered(self._dense(input), self.taps, _pair(self.stride))

    def _dense(self, x: torch.Tensor) -> torch.Tensor:
        """Return the maximum of the window at each place, up to the last one that `ceil_mode` includes."""
        if self.ceil_mode:
            height, width = (self._missing(x.shape[axis], axis) for axis in (HEIGHT, WIDTH))
            if height or width:
                x = F.pad(x, (0, width, 0, height), value=-torch.inf)
        return F.max_pool2d(x, self.kernel_size, 1, self.padding, self.dilation)

    def _missing(self, size: int, axis: int) -> int:
        """Return how far the last window of an axis reaches past the padding."""
        settings = (self.kernel_size, self.stride, self.padding, self.dilation)
        kernel, stride, padding, dilation = (_pair(setting)[axis] for setting in settings)
        places = size + 2 * padding - dilation * (kernel - 1)
        last = -((1 - places) // stride) * stride
        if last >= size + padding:  # torch leaves out a window that starts in the padding on the right
            last -= stride
        return max(0, last + 1 - places)


def _pair(setting: int | Sequence[int]) -> tuple[int, int]:
    """Return a setting for height and width."""
    height, width = (setting, setting) if isinstance(setting, int) else setting
    return height, width
