"""Methods of MosaicML Composer that engine-core does not have, as far as left_out.yaml needs them to measure why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrize
from torch.utils.data import DataLoader, default_collate

from benchmarks.recipes.text import Attention, ByteTransformer
from benchmarks.studies.nets import residual_net
from engine_core.examples.digits import make_loader


class GhostBatchNorm(nn.BatchNorm2d):
    """Normalizes each part of a batch by its own statistics (Hoffer et al. 2017, arXiv 1705.08741)."""

    parts = 4

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the normalized activations, of the shape of `x`."""
        parts = x.chunk(self.parts) if self.training else [x]
        return torch.cat([super(GhostBatchNorm, self).forward(part) for part in parts])


class Standardized(nn.Module):
    """Standardizes each filter of a convolution (Qiao et al. 2019, arXiv 1903.10520)."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the filters with mean 0 and variance 1."""
        var, mean = torch.var_mean(weight, (1, 2, 3), correction=0, keepdim=True)
        return (weight - mean) * (var + 1e-10).rsqrt()


class GyroDropout(nn.Module):
    """Drops units by one of `masks` masks drawn at the start, `kept` of which are used (Lee et al. 2022, MLSys).

    Its place in the sequence of masks is not part of a checkpoint, which is one reason why it is left out.
    """

    def __init__(self, rate: float = 0.5, masks: int = 256, kept: int = 16, steps: int = 230) -> None:
        super().__init__()
        self.rate, self.masks, self.kept, self.steps, self.step = rate, masks, kept, steps, 0
        self.all: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the activations (n, features) with half of them zero and the others doubled."""
        if not self.training:
            return x
        if self.all is None:
            self.all = (torch.rand(self.masks, x.shape[1]) >= self.rate).to(x) / (1 - self.rate)
        lasts = max(1, self.steps * self.kept // self.masks)  # batches until other masks are taken
        first = self.step // lasts * self.kept
        self.step += 1
        rows = (first + torch.arange(x.shape[0]) * self.kept // x.shape[0]) % self.masks
        return x * self.all[rows]


def _replace(model: nn.Module, change: Callable[[nn.Module], nn.Module | None]) -> nn.Module:
    """Return the model with each module for which there is another one replaced by it."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if (new := change(child)) is not None:
                setattr(parent, name, new)
    return model


def ghost_batch_norm() -> nn.Module:
    """Return the net with ghost batch norm, four parts of 16 rows in a batch of 64."""
    return _replace(residual_net(), lambda m: GhostBatchNorm(m.num_features) if type(m) is nn.BatchNorm2d else None)


def weight_standardization() -> nn.Module:
    """Return the net with standardized filters."""
    net = residual_net()
    for module in list(net.modules()):
        if isinstance(module, nn.Conv2d):
            parametrize.register_parametrization(module, "weight", Standardized())
    return net


def factorize(ratio: float = 0.25) -> nn.Module:
    """Return the net with each layer that has 16 or more channels on both sides as two of a lower rank."""

    def change(layer: nn.Module) -> nn.Module | None:
        if isinstance(layer, nn.Conv2d) and layer.in_channels >= 16:
            rank = int(ratio * min(layer.in_channels, layer.out_channels))
            first = nn.Conv2d(layer.in_channels, rank, 3, layer.stride[0], 1, bias=False)
            return nn.Sequential(first, nn.Conv2d(rank, layer.out_channels, 1, bias=False))
        if isinstance(layer, nn.Linear) and layer.out_features >= 16:
            rank = int(ratio * min(layer.in_features, layer.out_features))
            return nn.Sequential(nn.Linear(layer.in_features, rank, bias=False), nn.Linear(rank, layer.out_features))
        return None

    return _replace(residual_net(), change)


def gyro_dropout() -> nn.Module:
    """Return the net with gyro dropout before its last layer."""
    *layers, last = residual_net().children()
    return nn.Sequential(*layers, GyroDropout(), last)


def dropout() -> nn.Module:
    """Return the net with dropout at the same place, which gyro dropout would have to beat."""
    *layers, last = residual_net().children()
    return nn.Sequential(*layers, nn.Dropout(), last)


def augmix(batch_size: int = 64) -> DataLoader[Any]:
    """Return training batches as AugMix changes them: images are mixed with chains of 1 to 3 rotations, shears, shifts.

    Hendrycks et al. 2019, arXiv 1912.02781: three chains, weights from Dirichlet(1), and how much of the image stays
    from Beta(1, 1); as in Composer without the consistency loss.
    """

    def collate(rows: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        images, labels = default_collate(rows)
        weights = torch.distributions.Dirichlet(torch.ones(3)).sample((len(images),))
        mixed = sum(weights[:, chain, None, None, None] * _chain(images) for chain in range(3))
        stays = torch.rand(len(images), 1, 1, 1)
        return stays * images + (1 - stays) * mixed, labels

    return DataLoader(make_loader("train").dataset, batch_size, shuffle=True, collate_fn=collate)


def _chain(images: torch.Tensor) -> torch.Tensor:
    """Return images (n, 1, height, width), each after 1 to 3 rotations by up to 15 degrees, shears by 0.2 or shifts."""
    n = len(images)
    depth, moved = torch.randint(1, 4, (n,)), torch.eye(3).repeat(n, 1, 1)
    for place in range(3):
        kind, by = torch.randint(3, (n,)), torch.rand(n) * 2 - 1
        angle = torch.where(kind == 0, by * 0.26, 0)
        shift, shear = (torch.where(kind == k, by * 0.2, 0) for k in (1, 2))
        step = torch.eye(3).repeat(n, 1, 1)
        step[:, 0, 0] = step[:, 1, 1] = angle.cos()
        step[:, 0, 1], step[:, 1, 0], step[:, 0, 2] = shear - angle.sin(), angle.sin(), shift
        moved = torch.where((place < depth)[:, None, None], step @ moved, moved)
    grid = F.affine_grid(moved[:, :2], list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)


class AlibiAttention(Attention):
    """Attention without rotary positions, whose scores fall with the distance (Press et al. 2021, arXiv 2108.12409)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what each position takes from itself and those before it, of shape (n, length, width)."""
        queries, keys, values = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        places = torch.arange(x.shape[1])
        slopes = 2.0 ** (-8 * torch.arange(1, self.heads + 1) / self.heads)
        bias = slopes[:, None, None] * (places - places[:, None])
        bias = bias.masked_fill(places > places[:, None], -torch.inf)
        mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=bias)
        out: torch.Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


def alibi() -> nn.Module:
    """Return the transformer of bytes with ALiBi instead of rotary positions."""
    model = ByteTransformer()
    for module in model.modules():
        if type(module) is Attention:
            module.__class__ = AlibiAttention
    return model
