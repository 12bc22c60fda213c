"""Holes against loops over pixels and closed forms; what a batch keeps; what is refused."""

from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from augmentation_plugin import cutout_batch
from augmentation_plugin.holes import hole_side, mask_of


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


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


@settings(max_examples=60, deadline=None)
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
        (8, 20, 0.5, 4),
        (20, 8, 0.5, 4),
        (9, 9, 0.5, 4),
        (100, 100, 0.29, 29),
        (8, 8, 1, 8),
        (8, 8, 1e-6, 1),
    ],
)
def test_the_side_is_the_fraction_of_the_smaller_side_rounded_down_and_at_least_a_pixel(
    height: int, width: int, length: float, side: int
) -> None:
    assert hole_side(height, width, length) == side


@pytest.mark.parametrize(("height", "width", "side"), [(8, 8, 4), (7, 10, 3), (5, 5, 5), (6, 9, 1), (4, 6, 4)])
def test_the_mean_area_over_all_centres_is_the_closed_form(height: int, width: int, side: int) -> None:
    """Of n pixels in a row a clipped hole covers `side - floor(side^2 / 4) / n` on average."""
    ys, xs = torch.tensor(list(product(range(height), range(width)))).T.view(2, -1, 1, 1)
    area = mask_of(ys, xs, height, width, side).double().sum((1, 2)).mean().item()
    expected = (side - (side**2 // 4) / height) * (side - (side**2 // 4) / width)
    assert area == pytest.approx(expected, rel=1e-12)


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


def test_rows_have_their_own_holes_and_channels_the_same() -> None:
    erased = cutout_batch(torch.ones(64, 3, 16, 16), length=0.25, generator=seeded()) == 0
    assert len({tuple(row.flatten().tolist()) for row in erased[:, 0]}) > 50
    assert torch.equal(erased, erased[:, :1].expand_as(erased))


def test_more_holes_erase_more_and_are_as_many_as_asked() -> None:
    """Holes of one pixel on large images hardly ever meet."""
    erased = cutout_batch(torch.ones(50, 1, 200, 200), num_holes=4, length=0.005, generator=seeded()) == 0
    assert erased.sum((1, 2, 3)).median().item() == 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.uint8, torch.int64, torch.bool])
def test_the_dtype_is_kept(dtype: torch.dtype) -> None:
    holed = cutout_batch(torch.ones(4, 1, 8, 8, dtype=dtype), generator=seeded())
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


def test_the_same_generator_gives_the_same_holes_and_then_others() -> None:
    one, other, images = seeded(5), seeded(5), torch.ones(8, 1, 16, 16)
    first, second = (cutout_batch(images, generator=one) for _ in range(2))
    assert torch.equal(first, cutout_batch(images, generator=other)) and not torch.equal(first, second)


def test_without_a_generator_holes_differ_and_no_global_one_is_drawn_from() -> None:
    before, images = torch.get_rng_state(), torch.ones(8, 1, 16, 16)
    first, second = (cutout_batch(images) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before) and not torch.equal(first, second)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_holes": 0}, ValueError, r"num_holes=0 has to be within \[1, inf\)"),
        ({"num_holes": 1.5}, TypeError, "num_holes=1.5"),
        ({"length": 0}, ValueError, r"length=0 has to be within \(0, 1\]"),
        ({"length": 1.01}, ValueError, "length=1.01"),
        ({"length": float("nan")}, ValueError, "finite"),
        ({"length": "half"}, TypeError, "length='half'"),
        ({"input": torch.ones(4, 8, 8)}, ValueError, r"\(4, 8, 8\): give greyscale images a channel dimension"),
        ({"input": torch.ones(4, 1, 2, 8, 8)}, ValueError, r"images \(N, C, H, W\)"),
        ({"input": [torch.ones(1, 8, 8)]}, TypeError, "not a list"),
        ({"generator": 3}, TypeError, r"generator=3 \(int\) has to be a torch.Generator"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        cutout_batch(**{"input": torch.ones(4, 1, 8, 8), **arguments})


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint64, torch.float8_e4m3fn, torch.uint8, torch.bool])
def test_images_of_a_dtype_that_torch_cannot_fill_get_the_same_holes(dtype: torch.dtype) -> None:
    holed = cutout_batch(torch.ones(3, 2, 6, 6).to(dtype), generator=seeded(1))
    assert holed.dtype is dtype
    assert torch.equal(holed.float(), cutout_batch(torch.ones(3, 2, 6, 6), generator=seeded(1)))
