"""augmentation-plugin, by hand. Draws are the plugin's, in the same order, so that the weights agree."""

from __future__ import annotations

import math
import random

import torch
from nets import CLASSES
from sides import Case, Hand, Loop
from torch.nn import functional as F

from augmentation_plugin import CutMix, CutOut, MixUp, ProgressiveResizing


def beta(alpha: float, generator: torch.Generator) -> tuple[float, float, float, torch.Generator]:
    """Draw lambda, a position and a generator for the pairing."""
    source = random.Random(int(torch.randint(2**63 - 1, (), generator=generator)))  # noqa: S311
    lam = source.betavariate(alpha, alpha)
    lam = 1 - lam if source.random() < 0.5 else lam
    return lam, source.random(), source.random(), torch.Generator().manual_seed(source.getrandbits(63))


def shared_out(targets: torch.Tensor, paired: torch.Tensor, lam: float) -> torch.Tensor:
    """Give each row's class its share, and its partner's class the rest."""
    dense = torch.zeros(len(targets), CLASSES).scatter_(1, targets[:, None], lam)
    return dense.scatter_add_(1, paired[:, None], torch.full((len(targets), 1), 1 - lam))


def mixup(hand: Hand) -> Loop:
    """Mix inputs and dense targets."""
    model, optimizer, batches, generator = hand.model, hand.optimizer, hand.batches, hand.generator("mixup")

    def run() -> None:
        for inputs, targets in batches:
            optimizer.zero_grad()
            lam, _, _, shuffled = beta(0.2, generator)
            order = torch.randperm(len(inputs), generator=shuffled)
            outputs = model(torch.lerp(inputs, inputs[order], 1 - lam))
            loss = F.cross_entropy(outputs, shared_out(targets, targets[order], lam))
            loss.backward()
            optimizer.step()

    return run


def mixup_losses(hand: Hand) -> Loop:
    """Mix inputs and two losses."""
    model, optimizer, batches, generator = hand.model, hand.optimizer, hand.batches, hand.generator("mixup")

    def run() -> None:
        for inputs, targets in batches:
            optimizer.zero_grad()
            lam, _, _, shuffled = beta(0.2, generator)
            order = torch.randperm(len(inputs), generator=shuffled)
            outputs = model(torch.lerp(inputs, inputs[order], 1 - lam))
            loss = lam * F.cross_entropy(outputs, targets) + (1 - lam) * F.cross_entropy(outputs, targets[order])
            loss.backward()
            optimizer.step()

    return run


def cutmix(hand: Hand) -> Loop:
    """Paste a box of other images, and mix dense targets by area."""
    model, optimizer, batches, generator = hand.model, hand.optimizer, hand.batches, hand.generator("cutmix")

    def run() -> None:
        for inputs, targets in batches:
            optimizer.zero_grad()
            lam, y, x, shuffled = beta(1.0, generator)
            order = torch.randperm(len(inputs), generator=shuffled)
            height, width = inputs.shape[-2:]
            high, wide = int(height * math.sqrt(1 - lam)), int(width * math.sqrt(1 - lam))
            top, left = int(y * height) - high // 2, int(x * width) - wide // 2
            rows, columns = slice(max(top, 0), min(top + high, height)), slice(max(left, 0), min(left + wide, width))
            mixed = inputs.clone()
            mixed[..., rows, columns] = inputs[..., rows, columns][order]
            lam = 1 - (rows.stop - rows.start) * (columns.stop - columns.start) / (height * width)
            outputs = model(mixed)
            loss = F.cross_entropy(outputs, shared_out(targets, targets[order], lam))
            loss.backward()
            optimizer.step()

    return run


def cutout(hand: Hand) -> Loop:
    """Fill a hole in each image with zeros."""
    model, optimizer, batches, generator = hand.model, hand.optimizer, hand.batches, hand.generator("cutout")
    height, width, side = 32, 32, 16
    ys, xs = torch.arange(height), torch.arange(width)

    def run() -> None:
        for inputs, targets in batches:
            optimizer.zero_grad()
            top = torch.randint(height, (len(inputs), 1), generator=generator) - side // 2
            left = torch.randint(width, (len(inputs), 1), generator=generator) - side // 2
            down, across = (ys >= top) & (ys < top + side), (xs >= left) & (xs < left + side)
            holes = down[:, None, :, None] & across[:, None, None, :]
            loss = F.cross_entropy(model(inputs.masked_fill(holes, 0)), targets)
            loss.backward()
            optimizer.step()

    return run


def progressive_resizing(hand: Hand) -> Loop:
    """Interpolate images to a size that grows from half to full between 0.5 and 0.8 of training."""
    model, optimizer, batches, total = hand.model, hand.optimizer, hand.batches, hand.total
    step = 0

    def run() -> None:
        nonlocal step
        for inputs, targets in batches:
            optimizer.zero_grad()
            scale = 0.5 + 0.5 * min(max(0.0, (step / total - 0.5) / 0.3), 1.0)
            side = 4 * math.floor(32 * scale / 4 + 0.5 + 1e-9)
            if side < 32:
                inputs = F.interpolate(inputs, size=(side, side), mode="bilinear", antialias=True)  # noqa: PLW2901
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            step += 1

    return run


CASES = {
    "mixup": Case(lambda: [MixUp(0.2)], mixup),
    "mixup_losses": Case(lambda: [MixUp(0.2, interpolate_loss=True)], mixup_losses),
    "cutmix": Case(lambda: [CutMix(1.0)], cutmix),
    "cutout": Case(lambda: [CutOut(1, 0.5)], cutout),
    "progressive_resizing": Case(lambda: [ProgressiveResizing()], progressive_resizing),
}
