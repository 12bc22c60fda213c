"""Smaller images against F.interpolate and slices, targets against fractions; what is kept, what is refused."""

from fractions import Fraction
from typing import Any

import pytest
import torch
from augmentation_parts import seeded
from torch.nn import functional as F

from augmentation_plugin import resize_batch


def images(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return images whose pixels all differ, between 0 and 255."""
    count = torch.Size(shape).numel()
    return (torch.randperm(count, generator=seeded(1)) * (255 / count)).reshape(shape).to(dtype)


SIZES = [
    ((32, 32), 0.5, 4, (16, 16)),
    ((9, 30), 0.34, 1, (3, 10)),
    ((7, 7), 0.1, 2, (2, 2)),
]


@pytest.mark.parametrize(("full", "scale", "increment", "size"), SIZES)
def test_resized_images_are_those_of_interpolate(
    full: tuple[int, int], scale: float, increment: int, size: tuple[int, int]
) -> None:
    x, y = images(4, 3, *full), torch.arange(4)
    smaller, targets = resize_batch(x, y, scale, size_increment=increment)
    assert torch.equal(smaller, F.interpolate(x, size=size, mode="bilinear", antialias=True))
    assert targets is y


def test_antialiasing_lets_every_pixel_count() -> None:
    """At a quarter of the size plain bilinear interpolation skips three of four rows and columns."""
    x = torch.zeros(16, 1, 16, 16)
    x[torch.arange(16), 0, 7, torch.arange(16)] = 1
    assert (resize_batch(x, None, 0.25)[0].sum((1, 2, 3)) > 0).all()


@pytest.mark.parametrize(("full", "scale", "increment", "size"), SIZES)
def test_a_crop_is_one_window_of_images_and_targets(
    full: tuple[int, int], scale: float, increment: int, size: tuple[int, int]
) -> None:
    x, y = images(4, 3, *full), images(4, *full)
    cropped, targets = resize_batch(
        x, y, scale, "crop", resize_targets=True, size_increment=increment, generator=seeded()
    )
    windows = [
        (x[..., top : top + size[0], left : left + size[1]], y[:, top : top + size[0], left : left + size[1]])
        for top in range(full[0] - size[0] + 1)
        for left in range(full[1] - size[1] + 1)
    ]
    assert sum(torch.equal(cropped, a) and torch.equal(targets, b) for a, b in windows) == 1


def test_crops_are_uniform_over_all_places_the_last_included() -> None:
    """Chi squared of 16 places at 6,000 draws: 15 degrees of freedom, beyond 45 once in 13,000 seeds."""
    x, generator, counts = torch.arange(42.0).reshape(1, 1, 6, 7), seeded(2), torch.zeros(42)
    for _ in range(6000):
        counts[int(resize_batch(x, None, 0.5, "crop", generator=generator)[0][0, 0, 0, 0])] += 1
    places = counts.reshape(6, 7)
    assert places[:4, :4].count_nonzero() == places.count_nonzero() == 16
    assert ((places[:4, :4] - 375) ** 2 / 375).sum() < 45


@pytest.mark.parametrize(("full", "new", "classes"), [((12, 15), 0.67, ()), ((9, 10), 0.3, (3,)), ((64, 48), 0.9, ())])
def test_resized_targets_are_the_pixels_in_which_the_new_centres_lie(
    full: tuple[int, int], new: float, classes: tuple[int, ...]
) -> None:
    x, y = images(2, 1, *full), torch.randint(0, 9, (2, *classes, *full), generator=seeded())
    smaller, targets = resize_batch(x, y, new, resize_targets=True)
    rows, columns = (
        [int((i + Fraction(1, 2)) * Fraction(old, now)) for i in range(now)]
        for old, now in zip(full, smaller.shape[-2:], strict=True)
    )
    assert targets.dtype is y.dtype and torch.equal(targets, y[..., rows, :][..., columns])
    flat = y.float().reshape(2, -1, *full)
    exact = F.interpolate(flat, size=smaller.shape[-2:], mode="nearest-exact")
    assert torch.equal(targets.float().reshape(exact.shape), exact)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.uint8])
def test_other_dtypes_are_computed_in_float32_and_rounded(dtype: torch.dtype) -> None:
    x = images(4, 3, 16, 20, dtype=dtype)
    smaller = resize_batch(x, None, 0.5)[0]
    exact = F.interpolate(x.double(), size=(8, 10), mode="bilinear", antialias=True)
    step = 0.5 if dtype is torch.uint8 else torch.finfo(dtype).eps * exact.abs() / 2
    assert smaller.dtype is dtype
    assert ((smaller.double() - exact).abs() <= step + 1e-3).all()


def test_white_stays_white_in_uint8() -> None:
    x = torch.full((2, 3, 31, 37), 255, dtype=torch.uint8)
    assert all((resize_batch(x, None, scale)[0] == 255).all() for scale in (0.1, 0.3, 0.5, 0.77, 0.95))


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64])
def test_dtypes_without_a_mean_can_be_cropped_but_not_interpolated(dtype: torch.dtype) -> None:
    x = torch.ones(4, 1, 8, 8, dtype=dtype)
    assert resize_batch(x, None, 0.5, "crop")[0].dtype is dtype
    with pytest.raises(ValueError, match="set mode='crop'"):
        resize_batch(x, None, 0.5)


@pytest.mark.parametrize(("mode", "channels_last"), [("resize", True), ("crop", True), ("crop", False)])
def test_the_memory_format_is_kept(mode: str, channels_last: bool) -> None:
    layout = torch.channels_last if channels_last else torch.contiguous_format
    x, y = (images(4, 3, 16, 16).to(memory_format=layout) for _ in range(2))
    for made in resize_batch(x, y, 0.5, mode, resize_targets=True):
        assert made.is_contiguous(memory_format=layout) and made.shape == (4, 3, 8, 8)


@pytest.mark.parametrize("mode", ["resize", "crop"])
@pytest.mark.parametrize("width", [8, 4])
def test_what_was_given_stays_and_shares_nothing_with_what_is_returned(mode: str, width: int) -> None:
    """Whole rows of one image, cut out where the width stays at an increment, lie side by side in memory."""
    x, y = images(1, 1, 8, width), images(1, 8, width)
    before = x.clone(), y.clone()
    for made in resize_batch(x, y, 0.5, mode, resize_targets=True, size_increment=4):
        made.zero_()
    assert torch.equal(x, before[0]) and torch.equal(y, before[1])


@pytest.mark.parametrize(("scale", "increment"), [(1, 4), (0.99, 4), (0.5, 64)])
def test_at_full_size_the_same_objects_come_back_and_nothing_is_drawn(scale: float, increment: int) -> None:
    x, y, generator = images(4, 1, 32, 32), images(4, 32, 32), seeded()
    before = generator.get_state()
    returned = resize_batch(x, y, scale, "crop", resize_targets=True, size_increment=increment, generator=generator)
    assert returned[0] is x and returned[1] is y
    assert torch.equal(generator.get_state(), before)


def test_without_a_generator_crops_differ_and_no_global_one_is_drawn_from() -> None:
    before, x = torch.get_rng_state(), images(1, 1, 64, 64)
    crops = {float(resize_batch(x, None, 0.5, "crop")[0][0, 0, 0, 0]) for _ in range(20)}
    assert torch.equal(torch.get_rng_state(), before) and len(crops) > 10


X = torch.ones(4, 1, 8, 8)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"scale_factor": 0}, ValueError, r"scale_factor=0 has to be within \(0, 1\]"),
        ({"mode": "nearest"}, ValueError, "'resize' or 'crop'"),
        ({"size_increment": 0}, ValueError, "size_increment=0"),
        ({"resize_targets": "yes"}, TypeError, "resize_targets='yes'"),
        ({"input": X[0]}, ValueError, r"images \(N, C, H, W\)"),
        ({"input": [X]}, TypeError, "not a list"),
        (
            {"target": torch.ones(4), "resize_targets": True},
            ValueError,
            r"target of shape \(4,\) .*resize_targets=False",
        ),
        ({"target": torch.ones(3, 8, 8), "resize_targets": True}, ValueError, "same rows, height and width"),
        ({"target": [1], "resize_targets": True}, TypeError, "target has to be a tensor"),
        ({"mode": "crop", "generator": 3}, TypeError, r"generator=3 \(int\) has to be a torch.Generator"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        resize_batch(**{"input": X, "target": None, "scale_factor": 0.5, **arguments})
