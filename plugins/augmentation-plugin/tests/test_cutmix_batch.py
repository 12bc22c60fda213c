"""CutMix as a function: its pixels against a loop over all of them, the exact area, and the law of the box."""

import math

import pytest
import torch
from augmentation_parts import seeded
from scipy import stats

from augmentation_plugin import cutmix_batch
from augmentation_plugin.pairings import draw
from augmentation_plugin.pasting import box_of, paste
from engine_core.errors import ArgumentError, ArgumentTypeError


def by_hand(images: torch.Tensor, order: list[int], lam: float, place: tuple[float, float]) -> tuple[list, float]:
    """Decide of each pixel whether it is within half a box of the centre, as the paper draws it, on whole pixels."""
    rows, channels, height, width = images.shape
    sides = [int(length * math.sqrt(1 - lam)) for length in (height, width)]
    centre = [int(height * place[0]), int(width * place[1])]
    mixed, pasted = images.tolist(), 0
    for y in range(height):
        for x in range(width):
            inside = [0 <= at - c + side // 2 < side for at, c, side in zip((y, x), centre, sides, strict=True)]
            pasted += all(inside)
            for i in range(rows):
                for c in range(channels):
                    if all(inside):
                        mixed[i][c][y][x] = images[order[i], c, y, x].item()
    return mixed, 1 - pasted / (height * width)


@pytest.mark.parametrize("size", [(6, 6), (5, 9), (1, 7)])
def test_each_pixel_is_that_of_the_box_or_of_the_image_and_lambda_the_share_that_stays(size: tuple[int, int]) -> None:
    for seed in range(8):
        images, drawn = torch.randn(3, 2, *size), draw(1.0, seeded(seed))
        order = drawn.pairing(3)
        mixed, lam = paste(images, order, drawn.lam, drawn.place)
        assert (mixed.tolist(), lam) == by_hand(images, order.tolist(), drawn.lam, drawn.place)


def test_the_centre_is_uniform_over_the_pixels() -> None:
    generator = seeded(2)
    counts = torch.zeros(4, 3)
    for _ in range(2400):
        place = draw(1.0, generator).place
        box = box_of(4, 3, 1 - 0.4**2, place)  # 1 x 1 pixels
        assert (box.bottom - box.top, box.right - box.left) == (1, 1)
        counts[box.top, box.left] += 1
    assert stats.chisquare(counts.flatten().tolist()).pvalue > 0.001


def test_the_same_place_is_the_same_part_of_an_image_of_another_size() -> None:
    small, large = (box_of(size, size, 0.75, (0.25, 0.5)) for size in (16, 64))
    assert [4 * edge for edge in small] == list(large)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16])
def test_dtype_and_memory_format_stay(dtype: torch.dtype) -> None:
    images = torch.randint(9, (4, 3, 8, 8)).to(dtype).contiguous(memory_format=torch.channels_last)
    before = images.clone()
    mixed, lam = paste(images, torch.tensor([1, 2, 3, 0]), 0.5, (0.5, 0.5))
    assert mixed.dtype is dtype
    assert mixed.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(images, before)
    assert lam < 1


def test_an_image_alone_is_mixed_with_itself() -> None:
    image = torch.randn(1, 3, 6, 6)
    mixed, paired, _ = cutmix_batch(image, torch.tensor([2]), generator=seeded())
    assert torch.equal(mixed, image)
    assert paired.tolist() == [2]


@pytest.mark.parametrize(
    ("images", "error", "words"),
    [
        (torch.zeros(4, 8, 8), ArgumentError, r"\(4, 8, 8\).*unsqueeze"),
        (torch.zeros(4, 3, 0, 8), ArgumentError, r"without pixels.*\(4, 3, 0, 8\)"),
        (torch.zeros(4, 3, 8, 8, 8), ArgumentError, "convert them in the data"),
        ("images", ArgumentTypeError, "a str"),
    ],
)
def test_anything_but_images_is_refused(images: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        cutmix_batch(images, None)  # type: ignore[arg-type]


def test_alpha_has_to_be_positive() -> None:
    with pytest.raises(ArgumentError, match="alpha=-1"):
        cutmix_batch(torch.zeros(2, 1, 4, 4), None, alpha=-1)
