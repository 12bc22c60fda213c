"""Holes against loops over pixels and closed forms; what a batch keeps; what is refused."""

from itertools import product
from typing import Any

import pytest
import torch
from augmentation_parts import seeded
from hypothesis import given, settings
from hypothesis import strategies as st

from augmentation_plugin import cutout_batch
from augmentation_plugin.holes import hole_side


def holed_by_loops(images: torch.Tensor, num_holes: int, side: int, seed: int) -> torch.Tensor:
    """Cut holes row by row, hole by hole, pixel by pixel, from the same draws: all y, then all x."""
    rows, _, height, width = images.shape
    generator, out = seeded(seed), images.clone()
    ys = torch.randint(height, (rows, num_holes), generator=generator).tolist()
    xs = torch.randint(width, (rows, num_holes), generator=generator).tolist()
    for row, hole in product(range(rows), range(num_holes)):
        top, left = ys[row][hole] - side // 2, xs[row][hole] - side // 2
        for y, x in product(range(top, top + side), range(left, left + side)):
            if 0 <= y < height and 0 <= x < width:
                out[row, :, y, x] = 0
    return out


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 9), st.integers(1, 9), st.integers(0, 4), st.integers(1, 3), st.floats(0.05, 1), st.integers(0, 99)
)
def test_holes_are_those_of_a_loop_over_pixels(
    height: int, width: int, rows: int, num_holes: int, length: float, seed: int
) -> None:
    images = torch.randn(rows, 2, height, width, generator=seeded(seed + 1))
    expected = holed_by_loops(images, num_holes, hole_side(height, width, length), seed)
    assert torch.equal(cutout_batch(images, num_holes, length, generator=seeded(seed)), expected)


@pytest.mark.parametrize(
    ("height", "width", "length", "side"),
    [
        (8, 8, 0.5, 4),
        (9, 20, 0.5, 4),
        (100, 100, 0.29, 29),
        (8, 8, 1, 8),
        (8, 8, 1e-6, 1),
    ],
)
def test_the_side_is_the_fraction_of_the_smaller_side_rounded_down_and_at_least_a_pixel(
    height: int, width: int, length: float, side: int
) -> None:
    assert hole_side(height, width, length) == side


def test_the_mean_area_over_drawn_centres_is_the_closed_form() -> None:
    """16 x 16 with side 8: (8 - 16 / 16)^2 = 49 pixels; five standard errors of 20,000 rows are about 0.5."""
    erased = cutout_batch(torch.ones(20_000, 1, 16, 16), length=0.5, generator=seeded()) == 0
    areas = erased.double().sum((1, 2, 3))
    assert abs(areas.mean().item() - 49) < 5 * areas.std().item() / 20_000**0.5
    assert areas.std() < 20


def test_every_pixel_is_a_centre_equally_often() -> None:
    """Chi squared of 30 cells at 60,000 draws: 29 degrees of freedom, beyond 70 once in 30,000 seeds."""
    pixel = 0.2  # of 5 is one
    erased = cutout_batch(torch.ones(60_000, 1, 5, 6), length=pixel, generator=seeded(3)) == 0
    counts = erased.sum((0, 1)).flatten().double()
    assert counts.sum() == 60_000
    assert ((counts - 2000) ** 2 / 2000).sum() < 70


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.bool, torch.uint16, torch.float8_e4m3fn])
def test_the_dtype_is_kept_also_one_that_torch_cannot_fill(dtype: torch.dtype) -> None:
    holed = cutout_batch(torch.ones(4, 1, 8, 8).to(dtype), generator=seeded())
    expected = cutout_batch(torch.ones(4, 1, 8, 8), generator=seeded())
    assert holed.dtype is dtype and torch.equal(holed.float(), expected)


def test_the_memory_format_is_kept() -> None:
    images = torch.randn(4, 3, 8, 8).to(memory_format=torch.channels_last)
    holed = cutout_batch(images, generator=seeded())
    assert holed.stride() == images.stride()
    assert torch.equal(holed, cutout_batch(images.contiguous(), generator=seeded()))


def test_nan_and_infinity_are_erased_like_anything() -> None:
    holed = cutout_batch(torch.full((4, 1, 8, 8), float("nan")), generator=seeded())
    assert torch.equal(holed == 0, ~holed.isnan()) and (holed == 0).any()


@pytest.mark.parametrize("expanded", [False, True])
def test_the_images_given_are_left_as_they_are(expanded: bool) -> None:
    images = torch.ones(1, 1, 8, 8).expand(4, 1, 8, 8) if expanded else torch.ones(4, 1, 8, 8)
    holed = cutout_batch(images, generator=seeded())
    assert images.all() and not holed.all()


def test_without_a_generator_holes_differ_and_no_global_one_is_drawn_from() -> None:
    before, images = torch.get_rng_state(), torch.ones(8, 1, 16, 16)
    first, second = (cutout_batch(images) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before) and not torch.equal(first, second)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_holes": 0}, ValueError, r"num_holes=0 has to be within \[1, inf\)"),
        ({"length": 0}, ValueError, r"length=0 has to be within \(0, 1\]"),
        ({"length": float("nan")}, ValueError, "finite"),
        ({"length": "half"}, TypeError, "length='half'"),
        ({"input": torch.ones(4, 8, 8)}, ValueError, r"\(4, 8, 8\): give greyscale images a channel dimension"),
        ({"input": [torch.ones(1, 8, 8)]}, TypeError, "not a list"),
        ({"generator": 3}, TypeError, r"generator=3 \(int\) has to be a torch.Generator"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        cutout_batch(**{"input": torch.ones(4, 1, 8, 8), **arguments})
