"""augmentation-plugin, by hand. Draws are the plugin's, in the same order, so that the weights agree."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import torch
from nets import CLASSES
from sides import Case, Hand, Loop
from torch.nn import functional as F

from augmentation_plugin import (
    AlternatingFlip,
    ColOut,
    CutMix,
    CutOut,
    MixUp,
    ProgressiveResizing,
    RandAugment,
    RandomShift,
)


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


def splitmix64(place: int, seed: int) -> int:
    """Return a hash of an id."""
    z = (seed + (place + 1) * 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


def alternating_flip(hand: Hand) -> Loop:
    """Mirror the images whose turn it is, by a table of turns."""
    model, optimizer, batches, generator = hand.model, hand.optimizer, hand.batches, hand.generator("alternating_flip")
    turns = torch.tensor([splitmix64(place, generator.initial_seed()) % 2 for place in range(64)])
    epoch = 0

    def run() -> None:
        nonlocal epoch
        for inputs, targets in batches:
            optimizer.zero_grad()
            is_flipped = (turns + epoch) % 2 == 1
            flipped = torch.where(is_flipped[:, None, None, None], inputs.flip(-1), inputs)
            loss = F.cross_entropy(model(flipped), targets)
            loss.backward()
            optimizer.step()
        epoch += 1

    return run


def random_shift(hand: Hand) -> Loop:
    """Cut a window out of each padded image."""
    model, optimizer, batches, generator = hand.model, hand.optimizer, hand.batches, hand.generator("random_shift")

    def run() -> None:
        for inputs, targets in batches:
            optimizer.zero_grad()
            down, right = torch.randint(-2, 3, (2, len(inputs)), generator=generator)
            ys = torch.arange(2, 34) - down[:, None]
            places = ys[:, :, None] * 36 + (torch.arange(2, 34) - right[:, None])[:, None]
            padded = F.pad(inputs, (2, 2, 2, 2)).flatten(2)
            moved = padded.gather(2, places.view(-1, 1, 1024).expand(-1, 3, -1)).view(-1, 3, 32, 32)
            loss = F.cross_entropy(model(moved), targets)
            loss.backward()
            optimizer.step()

    return run


def rand_augment(hand: Hand) -> Loop:
    """Put each image through two operations, all that move it by one table of places."""
    model, optimizer, batches, generator = hand.model, hand.optimizer, hand.batches, hand.generator("rand_augment")
    axis = torch.arange(32) - 15.5
    down, across = axis[:, None], axis[None]

    def moved(images: torch.Tensor, kind: int, strength: float) -> torch.Tensor:
        sin, cos = math.sin(math.radians(30 * strength)), math.cos(math.radians(30 * strength))
        y, x = [
            (cos * down - sin * across, sin * down + cos * across),
            (down + 0 * across, 0.3 * strength * down + across),
            (down + 0.3 * strength * across, 0 * down + across),
            (down + 0 * across, 0 * down + across + 0.45 * strength * 32),
            (down + 0 * across + 0.45 * strength * 32, 0 * down + across),
        ][kind]
        y, x = (y + 16).floor().long(), (x + 16).floor().long()
        outside = (y < 0) | (y > 31) | (x < 0) | (x > 31)
        return images[:, :, y.clamp_(0, 31), x.clamp_(0, 31)].masked_fill_(outside, 0)

    def changed(images: torch.Tensor, kind: int, strength: float) -> torch.Tensor:
        if kind < 6:
            return moved(images, kind - 1, strength)
        others = images.mean((2, 3), keepdim=True)
        if kind == 7:
            others = images.clone()
            others[:, :, 1:-1, 1:-1] = (9 * F.avg_pool2d(images, 3, stride=1) + 4 * images[:, :, 1:-1, 1:-1]) / 13
        return torch.lerp(others, images, torch.tensor(1 + 0.9 * strength))

    def run() -> None:
        for inputs, targets in batches:
            optimizer.zero_grad()
            drawn = (torch.randint(kinds, (2, len(inputs)), generator=generator) for kinds in (8, 2))
            images = inputs.clone()
            for kinds, signs in zip(*drawn, strict=True):
                for kind, sign in itertools.product(range(1, 8), (0, 1)):
                    rows = ((kinds == kind) & (signs == sign)).nonzero().flatten()
                    images[rows] = changed(images[rows], kind, 0.9 * (1 - 2 * sign))
            loss = F.cross_entropy(model(images), targets)
            loss.backward()
            optimizer.step()

    return run


def col_out(hand: Hand) -> Loop:
    """Keep 27 of 32 rows and columns of pixels."""
    model, optimizer, batches, generator = hand.model, hand.optimizer, hand.batches, hand.generator("col_out")

    def run() -> None:
        for inputs, targets in batches:
            optimizer.zero_grad()
            rows, columns = (torch.randperm(32, generator=generator)[:27].sort().values for _ in range(2))
            loss = F.cross_entropy(model(inputs.index_select(2, rows).index_select(3, columns)), targets)
            loss.backward()
            optimizer.step()

    return run


def never(batch: Any, ids: Any) -> Any:
    """Refuse to set ids, which are in no batch."""
    raise NotImplementedError


CASES = {
    "mixup": Case(lambda: [MixUp(0.2)], mixup),
    "mixup_losses": Case(lambda: [MixUp(0.2, interpolate_loss=True)], mixup_losses),
    "cutmix": Case(lambda: [CutMix(1.0)], cutmix),
    "cutout": Case(lambda: [CutOut(1, 0.5)], cutout),
    "alternating_flip": Case(
        lambda: [AlternatingFlip(index_key=(lambda batch: torch.arange(len(batch[0])), never))], alternating_flip
    ),
    "random_shift": Case(lambda: [RandomShift(2)], random_shift),
    "rand_augment": Case(lambda: [RandAugment()], rand_augment, tolerance=1e-3),
    "col_out": Case(lambda: [ColOut()], col_out),
    "progressive_resizing": Case(lambda: [ProgressiveResizing()], progressive_resizing),
}
