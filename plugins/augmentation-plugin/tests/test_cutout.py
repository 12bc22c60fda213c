"""CutOut against loops over pixels, in an engine, in whole trainings and resumed; what it refuses."""

from itertools import product

import pytest
import torch
from augmentation_parts import seeded, train_on_digits
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from augmentation_plugin import CutOut, cutout_batch
from augmentation_plugin.holes import hole_side, mask_of
from engine_core import Engine, Event, Logger, State
from engine_core.errors import ArgumentError


def holed_by_loops(images, num_holes, side, seed):
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
def test_holes_are_those_of_a_loop_over_pixels(height, width, rows, num_holes, length, seed):
    images = torch.randn(rows, 2, height, width, generator=seeded(seed + 1))
    expected = holed_by_loops(images, num_holes, hole_side(height, width, length), seed)
    assert torch.equal(cutout_batch(images, num_holes, length, generator=seeded(seed)), expected)


@pytest.mark.parametrize(
    ("height", "width", "length", "side"),
    [(8, 8, 0.5, 4), (9, 20, 0.5, 4), (100, 100, 0.29, 29), (8, 8, 1, 8), (8, 8, 1e-6, 1)],
)
def test_the_side_is_the_fraction_of_the_smaller_side_rounded_down_and_at_least_a_pixel(height, width, length, side):
    assert hole_side(height, width, length) == side


def test_the_areas_of_a_hole_are_those_that_the_readme_gives():
    ys, xs = torch.cartesian_prod(torch.arange(32), torch.arange(32)).T.view(2, -1, 1, 1)
    areas = mask_of(ys, xs, 32, 32, 16).float().mean((1, 2))
    assert [round(float(share), 2) for share in (areas.mean(), areas.min(), areas.max())] == [0.19, 0.06, 0.25]


def test_every_pixel_is_a_centre_equally_often():
    """Chi squared of 30 cells at 60,000 draws: 29 degrees of freedom, beyond 70 once in 30,000 seeds."""
    pixel = 0.2  # of 5 is one
    erased = cutout_batch(torch.ones(60_000, 1, 5, 6), length=pixel, generator=seeded(3)) == 0
    counts = erased.sum((0, 1)).flatten().double()
    assert counts.sum() == 60_000
    assert ((counts - 2000) ** 2 / 2000).sum() < 70


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.bool, torch.uint16, torch.float8_e4m3fn])
def test_the_dtype_is_kept_also_one_that_torch_cannot_fill(dtype):
    holed = cutout_batch(torch.ones(4, 1, 8, 8).to(dtype), generator=seeded())
    expected = cutout_batch(torch.ones(4, 1, 8, 8), generator=seeded())
    assert holed.dtype is dtype and torch.equal(holed.float(), expected)


def test_the_memory_format_is_kept():
    images = torch.randn(4, 3, 8, 8).to(memory_format=torch.channels_last)
    holed = cutout_batch(images, generator=seeded())
    assert holed.stride() == images.stride()
    assert torch.equal(holed, cutout_batch(images.contiguous(), generator=seeded()))


def test_nan_and_infinity_are_erased_like_anything():
    holed = cutout_batch(torch.full((4, 1, 8, 8), float("nan")), generator=seeded())
    assert torch.equal(holed == 0, ~holed.isnan()) and (holed == 0).any()


@pytest.mark.parametrize("expanded", [False, True])
def test_the_images_given_are_left_as_they_are(expanded):
    images = torch.ones(1, 1, 8, 8).expand(4, 1, 8, 8) if expanded else torch.ones(4, 1, 8, 8)
    holed = cutout_batch(images, generator=seeded())
    assert images.all() and not holed.all()


def test_without_a_generator_holes_differ_and_no_global_one_is_drawn_from():
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
def test_what_makes_no_sense_is_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        cutout_batch(**{"input": torch.ones(4, 1, 8, 8), **arguments})


X, Y = torch.rand(8, 1, 16, 16, generator=torch.Generator().manual_seed(1)) + 1, torch.arange(8)


def drawn(algorithm, steps, seed=7, batch=(X, Y)):
    """Return the batches of some steps of a run of its own."""
    batches = []
    with Engine(State(model=nn.Identity(), algorithms=[algorithm], seed=seed, max_duration="9ba"), Logger()) as engine:
        engine.run_event(Event.INIT)
        for _ in range(steps):
            engine.state.batch = batch
            engine.run_event(Event.AFTER_DATALOADER)
            batches.append(engine.state.batch)
    return batches


def test_a_new_batch_with_the_functions_holes_takes_the_place_of_the_loaders():
    before = X.clone()
    generator = torch.Generator().manual_seed(State(seed=7).derive_seed("cutout"))
    for images, classes in drawn(CutOut(2, 0.25), 3):
        assert torch.equal(images, cutout_batch(X, 2, 0.25, generator=generator))
        assert classes is Y
    assert torch.equal(X, before)


def test_only_the_item_under_input_key_is_replaced():
    batch = {"image": X, "mask": X, "label": Y}
    (changed,) = drawn(CutOut(input_key="image"), 1, batch=batch)
    assert (changed["image"] == 0).any() and changed["mask"] is X and changed["label"] is Y
    assert batch["image"] is X


def put_into_a_copy_of_the_outer_dict(batch, value):
    batch = dict(batch)
    batch["deep"]["image"] = value
    return batch


@pytest.mark.parametrize(
    "setter", [lambda batch, value: batch["deep"].update(image=value), put_into_a_copy_of_the_outer_dict]
)
def test_a_setter_that_writes_into_the_loaders_batch_is_refused_and_undone(setter):
    batch = {"deep": {"image": X}}
    with pytest.raises(ArgumentError, match=r"the setter of input_key .* of everything on the way to the item"):
        drawn(CutOut(input_key=(lambda batch: batch["deep"]["image"], setter)), 1, batch=batch)
    assert batch["deep"]["image"] is X


def test_two_instances_in_a_run_draw_different_holes():
    state = State(model=nn.Identity(), algorithms=[CutOut(), CutOut()], seed=7, max_duration="9ba", batch=(X, Y))
    with Engine(state, Logger()) as engine:
        engine.run_event(Event.AFTER_DATALOADER)
    assert (state.batch[0] == 0).sum() > (drawn(CutOut(), 1)[0][0] == 0).sum()


@pytest.mark.parametrize(
    ("batch", "input_key", "message"),
    [
        ((X[:, 0], Y), 0, r"the input \(input_key=0\) has to be images .*\(8, 16, 16\): give greyscale images"),
        ((X, Y), 1, r"input_key=1\) has to be images"),
        ((X, Y), 2, "input_key=2: .* has no item 2; set input_key to where it is"),
        ({"image": X}, "img", "did you mean 'image'"),
    ],
)
def test_batches_without_images_are_refused_before_the_first_step(batch, input_key, message):
    with pytest.raises((ValueError, TypeError, LookupError), match=message):
        drawn(CutOut(input_key=input_key), 1, batch=batch)


@pytest.mark.parametrize("arguments", [{"num_holes": 0}, {"length": 2}, {"length": "1"}, {"input_key": 1.5}])
def test_arguments_are_refused_when_it_is_made(arguments):
    with pytest.raises((ValueError, TypeError), match=next(iter(arguments))):
        CutOut(**arguments)


@pytest.mark.full
def test_on_digits_the_training_loss_gets_higher_with_the_size_of_the_holes_and_still_falls():
    several = ([], [CutOut(length=0.25)], [CutOut(length=0.5)])
    none, small, large = (train_on_digits(algorithms, max_duration="16ep")[0].losses for algorithms in several)
    final = [sum(losses[-16:]) / 16 for losses in (none, small, large)]
    assert 0 < final[0] < 0.7 * final[1] < 0.49 * final[2] < 0.5 * large[0]
