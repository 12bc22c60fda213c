"""A frozen convolution that whitens patches, and a trained one that mixes its channels. Independent of the engine."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.parameter import is_lazy

from engine_core.arguments import check_number, check_whole
from engine_core.errors import ArgumentError
from engine_core.randomness import private_unless

from .models import check_model
from .replacement import Policy, replace_modules

__all__ = [
    "PatchSums",
    "WhitenedConv2d",
    "apply_whitened_stem",
    "check_directions",
    "check_eps",
    "check_images",
    "first_conv",
]


def check_eps(eps: float) -> float:
    """Return what is added to the variances."""
    return check_number("eps", eps, "(0, inf)", "what is added to the variance of each direction")


def check_directions(directions: int | None) -> int | None:
    """Return how many directions of patches are kept; None: all."""
    return directions if directions is None else check_whole("directions", directions, "[1, inf)", "of patches")


class PatchSums:
    """What the covariance of the patches that a convolution sees is made of, in double precision.

    Args:
        count: of patches.
        sums, products: of patches (k,) with k = channels * height * width, and of their outer products (k, k).

    Example:
        >>> sums = PatchSums.of(torch.rand(8, 1, 4, 4), nn.Conv2d(1, 6, 2))
        >>> sums.count, sums.covariance().shape
        (72, torch.Size([4, 4]))
    """

    def __init__(self, count: int, sums: torch.Tensor, products: torch.Tensor) -> None:
        self.count, self.sums, self.products = count, sums, products

    @classmethod
    @torch.no_grad()
    def of(cls, images: torch.Tensor, conv: nn.Conv2d) -> PatchSums:
        """Return those of images (n, c, h, w), at each place and with each padding of the convolution."""
        k = conv.weight[0].numel()
        reader = _like(conv, k).double()
        reader.weight.copy_(torch.eye(k).view_as(reader.weight))
        made = cls(0, torch.zeros(k, dtype=torch.float64), torch.zeros(k, k, dtype=torch.float64))
        for image in images.detach().cpu().double():
            patches = reader(image[None])[0].flatten(1)  # (k, places)
            made = made + cls(patches.shape[1], patches.sum(1), patches @ patches.T)
        return made

    def __add__(self, other: PatchSums) -> PatchSums:
        return PatchSums(self.count + other.count, self.sums + other.sums, self.products + other.products)

    def covariance(self) -> torch.Tensor:
        """Return (k, k)."""
        mean = self.sums / self.count
        covariance = self.products / self.count - mean[:, None] * mean
        return covariance.float().double()  # so that it does not depend on the order of the sums

    def filters(self, eps: float, directions: int | None = None) -> torch.Tensor:
        """Return filters (directions, k) with which patches have the covariance 1, up to eps; largest variance first.

        Each is an eigenvector of the covariance, divided by the root of its variance plus eps.
        """
        variances, vectors = torch.linalg.eigh(self.covariance())
        found = (vectors / (variances.clamp(min=0) + eps).sqrt()).T.flip(0)
        largest = found.gather(1, found.abs().argmax(1, keepdim=True))
        signed: torch.Tensor = found * largest.sign()
        return signed[:directions]  # an eigenvector has no sign of its own


class WhitenedConv2d(nn.Module):
    """A frozen convolution with whitening filters and their negatives, GELU, and a 1x1 convolution to the old width.

    Args:
        conv: the convolution whose place it takes; gives its geometry.
        filters: (directions, k), see `PatchSums.filters`.
        generator: on the CPU, for the weights of the 1x1 convolution; None: torch's global one.

    Example:
        >>> conv = nn.Conv2d(1, 6, 2)
        >>> WhitenedConv2d(conv, torch.eye(4))(torch.rand(8, 1, 4, 4)).shape
        torch.Size([8, 6, 3, 3])
    """

    def __init__(self, conv: nn.Conv2d, filters: torch.Tensor, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        width = 2 * len(filters)
        self.whiten = _like(conv, width)
        bias: Any = {"bias": conv.bias is not None}
        self.mix: nn.Conv2d = nn.utils.skip_init(nn.Conv2d, width, conv.out_channels, 1, **bias)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            self.whiten.weight.copy_(torch.cat([filters, -filters]).view_as(self.whiten.weight))
            for weight in self.mix.parameters():
                bound = 1 / math.sqrt(width)
                weight.uniform_(-bound, bound, generator=generator)
        self.whiten.weight.requires_grad_(False)
        self.to(conv.weight.device, conv.weight.dtype)
        self.train(conv.training)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return images (n, out_channels, h, w), of the size that the replaced convolution gives."""
        mixed: torch.Tensor = self.mix(F.gelu(self.whiten(x)))
        return mixed


def _like(conv: nn.Conv2d, channels: int) -> nn.Conv2d:
    """Return a convolution with the geometry of another, as many channels, no bias, and weights that are not set."""
    shape: Any = (conv.kernel_size, conv.stride, conv.padding, conv.dilation)
    settings: Any = {"bias": False, "padding_mode": conv.padding_mode}
    made: nn.Conv2d = nn.utils.skip_init(nn.Conv2d, conv.in_channels, channels, *shape, **settings)  # type: ignore[no-untyped-call]
    return made


def first_conv(model: nn.Module) -> nn.Conv2d | None:
    """Return the first convolution of a model, in the order of its modules; None: the model has a stem already.

    Raises:
        ArgumentError: (a ValueError) if there is none, or it is not plain.
    """
    for name, module in model.named_modules():
        if isinstance(module, WhitenedConv2d):
            return None
        if isinstance(module, nn.Conv2d):
            if type(module) is not nn.Conv2d or module.groups != 1 or is_lazy(module.weight):
                what = f"{type(module).__name__} with groups={module.groups}"
                raise ArgumentError(f"whitened_stem replaces a plain Conv2d, and the first one, {name!r}, is a {what}")
            return module
    raise ArgumentError(f"whitened_stem needs a Conv2d, and {type(model).__name__} has none: leave it out")


def apply_whitened_stem(
    model: nn.Module,
    images: torch.Tensor | PatchSums | None,
    *,
    eps: float = 5e-4,
    directions: int | None = None,
    optimizers: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] = (),
    generator: torch.Generator | None = None,
) -> list[str]:
    """Let a model begin with a whitening of patches, in place of its first convolution; return that one's name.

    Source: Jordan 2024, 94% on CIFAR-10 in 3.29 Seconds on a Single GPU, arXiv 2404.00498, and before it tysam-code's
    hlb-CIFAR10. The weights of the replaced convolution are gone. A model that has such a stem is left as it is.

    Args:
        images: (n, c, h, w), as the model gets them, or their sums; None: the filters are 0, as weights are loaded.
        eps: added to the variance of each direction, so that those without any are not blown up.
        directions: how many filters, those with the largest variance, each with its negative; None: all.
        optimizers: existing ones, or one; they get the new parameters.
        generator: on the CPU, for the new weights; None: a private one, seeded by the system.

    Raises:
        ArgumentError, ArgumentTypeError: (a ValueError, a TypeError) for impossible numbers, for anything but a model,
            images or a generator, if there is no plain Conv2d, and if the model itself is one.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Conv2d(6, 6, 3))
        >>> apply_whitened_stem(model, torch.rand(16, 1, 8, 8)), model[0].whiten.out_channels
        (['0'], 18)
    """
    check_model(model)
    check_eps(eps)
    check_directions(directions)
    target, own = first_conv(model), private_unless(generator)
    if target is None:
        return []
    if images is None:
        filters = torch.zeros(target.weight[0].numel(), target.weight[0].numel())[:directions]
    else:
        found = images if isinstance(images, PatchSums) else PatchSums.of(check_images(images, target), target)
        filters = found.filters(eps, directions)

    def policy(conv: Any, _: str) -> nn.Module | None:
        return WhitenedConv2d(conv, filters, generator=own) if conv is target else None

    policies: dict[type[nn.Module], Policy] = {nn.Conv2d: policy}
    return replace_modules(model, policies, optimizers=optimizers)


def check_images(images: Any, conv: nn.Conv2d) -> torch.Tensor:
    """Return images that a convolution takes, (n, c, h, w).

    Raises:
        ArgumentError: (a ValueError) for anything else.
    """
    is_images = isinstance(images, torch.Tensor) and images.dim() == 4 and images.is_floating_point()
    if not is_images or images.shape[1] != conv.in_channels:
        shape = f"{images.dtype} of shape {tuple(images.shape)}" if isinstance(images, torch.Tensor) else ""
        raise ArgumentError(
            f"whitened_stem needs images (n, {conv.in_channels}, height, width) of floating point, as the first Conv2d "
            f"takes them, and the input of the model is a {type(images).__name__} {shape}".rstrip()
        )
    return images  # type: ignore[no-any-return]
