"""Flips, shifts, RandAugment and ColOut against loops over rows and pixels; their laws, their place in a run."""

import math
from itertools import permutations, product

import pytest
import torch
from augmentation_parts import seeded
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from augmentation_plugin import (
    AlternatingFlip,
    ColOut,
    CutOut,
    ProgressiveResizing,
    RandAugment,
    RandomShift,
    alternating_flip_batch,
    col_out_batch,
    rand_augment_batch,
    random_shift_batch,
)
from augmentation_plugin.distortions import OPERATIONS
from engine_core import Engine, Event, Logger, State

SIDES, SEEDS = st.integers(1, 9), st.integers(0, 99)


def splitmix64(place, seed):
    """As Steele, Lea and Flood 2014 have it, in Python's whole numbers."""
    z = (seed + (place + 1) * 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5), st.integers(0, 2**63 - 1), st.integers(0, 9), SIDES)
def test_an_image_is_flipped_in_every_second_epoch_from_the_one_that_the_hash_says(ids, seed, epoch, width):
    images = torch.randn(len(ids), 2, 3, width)
    found = alternating_flip_batch(images, torch.tensor(ids, dtype=torch.long), epoch, seed=seed)
    turns = [(splitmix64(place, seed) + epoch) % 2 for place in ids]
    assert all(
        map(torch.equal, found, [row.flip(-1) if turn else row for row, turn in zip(images, turns, strict=True)])
    )


def test_the_hash_is_the_published_one_and_halves_the_examples_otherwise_with_another_seed():
    assert [hex(splitmix64(place, 0)) for place in range(2)] == ["0xe220a8397b1dcdaf", "0x6e789e6aa1b965f4"]
    images, ids = torch.tensor([0, 1]).expand(10_000, 1, 1, 2), torch.arange(10_000)
    first, other = (alternating_flip_batch(images, ids, 0, seed=seed)[:, 0, 0, 0].float() for seed in (1, 2))
    assert first.mean() == pytest.approx(0.5, abs=0.02)
    assert (first == other).float().mean() == pytest.approx(0.5, abs=0.02)


@settings(max_examples=40, deadline=None)
@given(SIDES, SIDES, st.integers(0, 4), st.integers(0, 8), SEEDS, st.sampled_from(["zeros", "reflect"]))
def test_shifts_are_windows_of_padded_images(height, width, rows, most, seed, padding):
    most = min(most, height - 1, width - 1)
    images = torch.randn(rows, 2, height, width)
    down, right = torch.randint(-most, most + 1, (2, rows), generator=seeded(seed)).tolist()
    padded = F.pad(images, (most,) * 4, mode="constant" if padding == "zeros" else padding) if rows else images
    windows = [
        row[:, most - y : most - y + height, most - x : most - x + width]
        for row, y, x in zip(padded, down, right, strict=True)
    ]
    found = random_shift_batch(images, most, padding, generator=seeded(seed))
    assert all(map(torch.equal, found, windows))


@settings(max_examples=40, deadline=None)
@given(SIDES, SIDES, st.floats(0, 0.99), st.floats(0, 0.99), SEEDS)
def test_col_out_leaves_the_drawn_lines_in_their_order_and_all_images_and_targets_alike(
    height, width, p_row, p_col, seed
):
    images, generator = torch.randn(3, 2, height, width), seeded(seed)
    ys, xs = (
        sorted(torch.randperm(side, generator=generator).tolist()[: max(1, int((1 - p) * side + 1e-9))])
        for side, p in ((height, p_row), (width, p_col))
    )
    kept, masks = col_out_batch(images, images[:, 0], p_row, p_col, resize_targets=True, generator=seeded(seed))
    for y, x in product(range(len(ys)), range(len(xs))):
        assert torch.equal(kept[..., y, x], images[..., ys[y], xs[x]])
    assert kept.shape == (3, 2, len(ys), len(xs)) and torch.equal(masks, kept[:, 0])


def moved(image, operation, strength):
    """Return one image (C, H, W), each pixel looked up by itself."""
    out, (height, width) = torch.zeros_like(image), image.shape[-2:]
    sin, cos = math.sin(math.radians(30 * strength)), math.cos(math.radians(30 * strength))
    for y, x in product(range(height), range(width)):
        v, h = y - (height - 1) / 2, x - (width - 1) / 2
        v, h = {
            "rotate": (cos * v - sin * h, sin * v + cos * h),
            "shear_x": (v, h + 0.3 * strength * v),
            "shear_y": (v + 0.3 * strength * h, h),
            "translate_x": (v, h + 0.45 * strength * width),
            "translate_y": (v + 0.45 * strength * height, h),
        }[operation]
        from_y, from_x = math.floor(v + height / 2), math.floor(h + width / 2)
        if 0 <= from_y < height and 0 <= from_x < width:
            out[:, y, x] = image[:, from_y, from_x]
    return out


def sharpened(image, factor):
    out, (height, width) = image.clone(), image.shape[-2:]
    for y, x in product(range(1, height - 1), range(1, width - 1)):
        smooth = (image[:, y - 1 : y + 2, x - 1 : x + 2].sum((1, 2)) + 4 * image[:, y, x]) / 13
        out[:, y, x] = smooth + factor * (image[:, y, x] - smooth)
    return out


def distorted(image, operation, strength):
    if operation == "identity":
        return image
    if operation == "sharpness":
        return sharpened(image, 1 + 0.9 * strength)
    if operation == "contrast":
        mean = image.mean((1, 2), keepdim=True)
        return mean + (1 + 0.9 * strength) * (image - mean)
    return moved(image, operation, strength)


@settings(max_examples=40, deadline=None)
@given(SIDES, SIDES, st.integers(0, 6), st.integers(1, 3), st.sampled_from([1, 5, 9, 10]), SEEDS)
def test_each_image_goes_through_the_operations_that_were_drawn_for_it(height, width, rows, num_ops, magnitude, seed):
    images, generator = torch.randn(rows, 2, height, width), seeded(seed)
    places = torch.randint(8, (num_ops, rows), generator=generator)
    signs = torch.randint(2, (num_ops, rows), generator=generator)
    expected = []
    for row, image in enumerate(images):
        for place, sign in zip(places[:, row], signs[:, row], strict=True):
            image = distorted(image, OPERATIONS[place], magnitude / 10 * (-1 if sign else 1))  # noqa: PLW2901
        expected.append(image)
    found = rand_augment_batch(images, num_ops, magnitude, generator=seeded(seed))
    torch.testing.assert_close(found, torch.stack(expected) if rows else images)


def flip(images):
    return alternating_flip_batch(images, torch.arange(len(images)), 0)


def shift(images, by=3):
    return random_shift_batch(images, by, generator=seeded())


def augment(images, magnitude=9):
    return rand_augment_batch(images, 2, magnitude, generator=seeded())


def leave_out(images, part=0.2):
    return col_out_batch(images, None, part, part, generator=seeded())[0]


FLOATS = (torch.float16, torch.bfloat16, torch.float64)
EACH = [(flip, torch.float8_e4m3fn), (shift, torch.uint16), (leave_out, torch.bool), *((augment, d) for d in FLOATS)]


@pytest.mark.parametrize(("function", "dtype"), EACH)
def test_dtype_memory_format_and_the_images_given_are_kept_and_no_global_generator_is_drawn_from(function, dtype):
    images, before = (torch.rand(6, 3, 8, 8) * 2).to(dtype), torch.get_rng_state()
    copy, last = images.clone(), images.to(memory_format=torch.channels_last)
    changed, changed_last = function(images), function(last)
    assert changed.dtype is dtype and changed_last.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(changed.float(), changed_last.float()) and changed.shape[:2] == images.shape[:2]
    assert torch.equal(images.float(), copy.float()) and torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("function", [shift, augment, leave_out])
def test_at_zero_strength_nothing_changes(function):
    images = torch.randn(6, 3, 7, 8)
    assert torch.equal(function(images, 0), images) and not torch.equal(function(images), images)


X, Y, IDS = torch.randn(12, 1, 8, 8, generator=seeded(5)), torch.arange(12), torch.arange(100, 112)
BATCH = (X, Y, IDS)


def drawn(algorithms, batch=BATCH, steps=1, **given):
    """Return the images of the last of some steps."""
    state = State(model=nn.Identity(), algorithms=algorithms, max_duration="9ba", **{"seed": 7, **given})
    with Engine(state, Logger()) as engine:
        engine.run_event(Event.INIT)
        for _ in range(steps):
            state.batch = batch
            engine.run_event(Event.AFTER_DATALOADER)
    return state.batch


@pytest.mark.parametrize(
    ("make", "are_alike"), [(AlternatingFlip, True), (ColOut, True), (RandomShift, False), (RandAugment, False)]
)
def test_ranks_draw_for_each_row_but_agree_on_what_is_the_same_for_all(make, are_alike):
    first, second = (drawn([make()], rank=rank, world_size=1)[0] for rank in (0, 1))
    assert torch.equal(first, second) == are_alike


def test_a_run_loads_the_half_that_is_flipped_first_whatever_its_own_seed():
    saved = AlternatingFlip()
    expected = drawn([saved])[0]
    loaded = AlternatingFlip()
    loaded.load_state_dict(saved.state_dict())
    assert torch.equal(drawn([loaded], seed=8)[0], expected)
    assert not torch.equal(drawn([AlternatingFlip()], seed=8)[0], expected)


def test_whatever_the_list_the_images_are_changed_in_one_order_flips_first_and_holes_last():
    makers = [AlternatingFlip, RandomShift, ProgressiveResizing, ColOut, RandAugment, CutOut]
    images = [drawn([make() for make in order])[0] for order in (makers, makers[::-1], makers[3:] + makers[:3])]
    assert torch.equal(images[0], images[1]) and torch.equal(images[0], images[2])
    for one, other in permutations(makers, 2):
        if makers.index(one) > makers.index(other):
            assert torch.equal(drawn([one(), other()])[0], drawn([other(), one()])[0]), (one, other)


def test_col_out_makes_targets_smaller_when_asked():
    batch = {"x": X, "y": X[:, 0]}
    changed = drawn([ColOut(0.5, 0.25, True, input_key="x", target_key="y")], batch)
    assert changed["x"].shape == (12, 1, 4, 6) and torch.equal(changed["x"][:, 0], changed["y"])
    assert batch["x"] is X and drawn([ColOut(input_key="x")], batch)["y"] is batch["y"]


@pytest.mark.parametrize(
    ("make", "batch", "message"),
    [
        (
            AlternatingFlip,
            (X, Y),
            r"index_key=2: .* no item 2; .*let the dataset give its number with each example, as T",
        ),
        (
            AlternatingFlip,
            (X, Y, Y.float()),
            r"the ids \(index_key=2\) has to be a tensor of whole numbers, not .*float",
        ),
        (AlternatingFlip, (X, Y, Y[:, None]), r"of shape \(12, 1\) is not one for each of 12 images: let the dataset"),
        (lambda: AlternatingFlip(index_key=1), BATCH, "index_key=1 finds the targets, not ids: let"),
        (lambda: AlternatingFlip(index_key=0), BATCH, "index_key=0 is where the images are, not the ids: let"),
        (lambda: RandomShift(8), BATCH, "max_shift=8 would move images of 8 x 8 out of sight: .* less than 8"),
        (lambda: RandomShift(-1), BATCH, r"max_shift=-1 has to be within \[0, inf\)"),
        (lambda: RandomShift(padding="zero"), BATCH, "padding='zero' has to be 'zeros' or 'reflect'"),
        (RandAugment, (X.to(torch.uint8), Y), r"input_key=0\) has images of torch.uint8: convert them to floats"),
        (lambda: RandAugment(0), BATCH, r"num_ops=0 has to be within \[1, inf\)"),
        (lambda: RandAugment(magnitude=30), BATCH, r"magnitude=30 has to be within \[0, 10\]"),
        (lambda: ColOut(1), BATCH, r"p_row=1 has to be within \[0, 1\)"),
        (lambda: ColOut(resize_targets=True), BATCH, r"the target \(target_key=1\) of shape \(12,\) can't be resized"),
    ],
)
def test_what_makes_no_sense_is_refused_before_the_first_step(make, batch, message):
    with pytest.raises((ValueError, TypeError, LookupError), match=message):
        drawn([make()], batch, loss_fn=F.cross_entropy)
