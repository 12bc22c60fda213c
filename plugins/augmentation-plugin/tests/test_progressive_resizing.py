"""ProgressiveResizing: sizes by step, smaller images against oracles, refusals, logs, resume."""

from fractions import Fraction

import pytest
import torch
from augmentation_parts import seeded, train_on_digits
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from augmentation_plugin import ProgressiveResizing, resize_batch, resizing_scale
from augmentation_plugin.sizes import resized_side
from engine_core import Engine, Event, Logger, State, Timestamp
from engine_core.errors import ArgumentError
from engine_core_author import RecordingDestination

FRACTIONS = st.floats(0, 1)


def test_the_default_schedule_is_this():
    """Half up to the middle, 1 from 0.8 on, and between them 1/2 + 1/2 * (t - 0.5) / 0.3."""
    scales = {hundredth: resizing_scale(hundredth / 100) for hundredth in range(0, 101, 5)}
    assert scales == pytest.approx({
        0: 0.5, 5: 0.5, 10: 0.5, 15: 0.5, 20: 0.5, 25: 0.5, 30: 0.5, 35: 0.5, 40: 0.5, 45: 0.5, 50: 0.5,
        55: 7 / 12, 60: 8 / 12, 65: 9 / 12, 70: 10 / 12, 75: 11 / 12, 80: 1, 85: 1, 90: 1, 95: 1, 100: 1,
    })  # fmt: skip
    assert {scales[0], scales[50]} == {0.5} and {scales[80], scales[100]} == {1.0}


@pytest.mark.parametrize(
    ("arguments", "tenths"),
    [
        ((0.2, 0, 0), [0.2, 0.28, 0.36, 0.44, 0.52, 0.6, 0.68, 0.76, 0.84, 0.92, 1]),
        ((0.4, 0.3, 0.7), [0.4] * 7 + [1] * 4),
        ((0.4, 0.7, 0.3), [0.4] * 3 + [1] * 8),
        ((0.4, 0, 1), [0.4] * 10 + [1]),
        ((0.4, 1, 0), [1] * 11),
        ((1, 0.2, 0.5), [1] * 11),
    ],
    ids=["ramp only", "a step at 0.7", "a step at 0.3", "never", "at once", "no resizing"],
)
def test_the_bounds_of_the_schedule(arguments, tenths):
    assert [resizing_scale(tenth / 10, *arguments) for tenth in range(11)] == pytest.approx(tenths)


def test_the_share_of_pixels_and_the_sizes_of_ten_steps_are_those_that_the_readme_gives():
    """A quarter of the pixels at first, and half over the whole training, exact or in multiples of 4."""
    scales = [resizing_scale(step / 3000) for step in range(3000)]
    assert scales[0] ** 2 == 0.25
    assert sum(scale**2 for scale in scales) / 3000 == pytest.approx(0.5, abs=0.005)
    assert sum(resized_side(32, scale, 4) ** 2 for scale in scales) / 3000 == pytest.approx(512, abs=5)
    assert [resized_side(32, scale, 4) for scale in scales[::300]] == [16] * 6 + [20, 28, 32, 32]


@given(FRACTIONS, FRACTIONS, st.floats(0.01, 1), FRACTIONS, FRACTIONS)
def test_the_scale_never_falls_and_stays_within_its_bounds(one, other, initial, finetune, delay):
    assume(finetune + delay <= 1)
    earlier, later = (resizing_scale(t, initial, finetune, delay) for t in sorted((one, other)))
    assert initial <= earlier <= later <= 1


@given(st.integers(1, 300), FRACTIONS.filter(bool), st.integers(1, 64))
def test_a_side_is_the_nearest_multiple_within_its_bounds(side, scale, increment):
    """The exact size is that of the fraction which the float is; a tie may go either way by rounding."""
    got, exact = resized_side(side, scale, increment), side * Fraction(scale)
    assert 1 <= got <= side
    if got == side:
        assert scale == 1 or exact + Fraction(increment, 2) >= side or side <= increment
    else:
        assert got % increment == 0
        assert abs(got - exact) <= Fraction(increment, 2) + Fraction(1, 10**6) * increment or got == increment


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"initial_scale": 0}, r"initial_scale=0 has to be within \(0, 1\]"),
        ({"initial_scale": 1.5}, "initial_scale=1.5"),
        ({"finetune_fraction": -0.1}, "finetune_fraction=-0.1"),
        ({"delay_fraction": 1.1}, "delay_fraction=1.1"),
        ({"delay_fraction": 0.6, "finetune_fraction": 0.5}, "add up to more than the training"),
        ({"size_increment": 0}, "size_increment=0"),
        ({"mode": "stretch"}, "mode='stretch' has to be 'resize' or 'crop'"),
    ],
)
def test_arguments_that_make_no_schedule_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        ProgressiveResizing(**arguments)
    if arguments.keys() <= {"initial_scale", "finetune_fraction", "delay_fraction"}:
        with pytest.raises(ValueError, match=message):
            resizing_scale(0.5, **arguments)


@pytest.mark.parametrize("elapsed", [-0.1, float("nan"), "0.5"])
def test_an_invalid_moment_is_refused(elapsed):
    with pytest.raises((ValueError, TypeError), match="elapsed="):
        resizing_scale(elapsed)


def images(*shape, dtype=torch.float32):
    """Return images whose pixels all differ, between 0 and 255."""
    count = torch.Size(shape).numel()
    return (torch.randperm(count, generator=seeded(1)) * (255 / count)).reshape(shape).to(dtype)


SIZES = [((32, 32), 0.5, 4, (16, 16)), ((9, 30), 0.34, 1, (3, 10)), ((7, 7), 0.1, 2, (2, 2))]


@pytest.mark.parametrize(("full", "scale", "increment", "size"), SIZES)
def test_resized_images_are_those_of_interpolate(full, scale, increment, size):
    x, y = images(4, 3, *full), torch.arange(4)
    smaller, targets = resize_batch(x, y, scale, size_increment=increment)
    assert torch.equal(smaller, F.interpolate(x, size=size, mode="bilinear", antialias=True))
    assert targets is y


@pytest.mark.parametrize(("full", "scale", "increment", "size"), SIZES)
def test_a_crop_is_one_window_of_images_and_targets(full, scale, increment, size):
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


def test_crops_are_uniform_over_all_places_the_last_included():
    """Chi squared of 16 places at 6,000 draws: 15 degrees of freedom, beyond 45 once in 13,000 seeds."""
    x, generator, counts = torch.arange(42.0).reshape(1, 1, 6, 7), seeded(2), torch.zeros(42)
    for _ in range(6000):
        counts[int(resize_batch(x, None, 0.5, "crop", generator=generator)[0][0, 0, 0, 0])] += 1
    places = counts.reshape(6, 7)
    assert places[:4, :4].count_nonzero() == places.count_nonzero() == 16
    assert ((places[:4, :4] - 375) ** 2 / 375).sum() < 45


@pytest.mark.parametrize(("full", "new", "classes"), [((12, 15), 0.67, ()), ((9, 10), 0.3, (3,)), ((64, 48), 0.9, ())])
def test_resized_targets_are_the_pixels_in_which_the_new_centres_lie(full, new, classes):
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
def test_other_dtypes_are_computed_in_float32_and_rounded(dtype):
    x = images(4, 3, 16, 20, dtype=dtype)
    smaller = resize_batch(x, None, 0.5)[0]
    exact = F.interpolate(x.double(), size=(8, 10), mode="bilinear", antialias=True)
    step = 0.5 if dtype is torch.uint8 else torch.finfo(dtype).eps * exact.abs() / 2
    assert smaller.dtype is dtype
    assert ((smaller.double() - exact).abs() <= step + 1e-3).all()


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64])
def test_dtypes_without_a_mean_can_be_cropped_but_not_interpolated(dtype):
    x = torch.ones(4, 1, 8, 8, dtype=dtype)
    assert resize_batch(x, None, 0.5, "crop")[0].dtype is dtype
    with pytest.raises(ValueError, match="set mode='crop'"):
        resize_batch(x, None, 0.5)


@pytest.mark.parametrize(("mode", "channels_last"), [("resize", True), ("crop", True), ("crop", False)])
def test_the_memory_format_is_kept(mode, channels_last):
    layout = torch.channels_last if channels_last else torch.contiguous_format
    x, y = (images(4, 3, 16, 16).to(memory_format=layout) for _ in range(2))
    for made in resize_batch(x, y, 0.5, mode, resize_targets=True):
        assert made.is_contiguous(memory_format=layout) and made.shape == (4, 3, 8, 8)


@pytest.mark.parametrize("mode", ["resize", "crop"])
@pytest.mark.parametrize("width", [8, 4])
def test_what_was_given_stays_and_shares_nothing_with_what_is_returned(mode, width):
    """Whole rows of one image, cut out where the width stays at an increment, lie side by side in memory."""
    x, y = images(1, 1, 8, width), images(1, 8, width)
    before = x.clone(), y.clone()
    for made in resize_batch(x, y, 0.5, mode, resize_targets=True, size_increment=4):
        made.zero_()
    assert torch.equal(x, before[0]) and torch.equal(y, before[1])


@pytest.mark.parametrize(("scale", "increment"), [(1, 4), (0.99, 4), (0.5, 64)])
def test_at_full_size_the_same_objects_come_back_and_nothing_is_drawn(scale, increment):
    x, y, generator = images(4, 1, 32, 32), images(4, 32, 32), seeded()
    before = generator.get_state()
    returned = resize_batch(x, y, scale, "crop", resize_targets=True, size_increment=increment, generator=generator)
    assert returned[0] is x and returned[1] is y
    assert torch.equal(generator.get_state(), before)


ONES = torch.ones(4, 1, 8, 8)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"scale_factor": 0}, ValueError, r"scale_factor=0 has to be within \(0, 1\]"),
        ({"mode": "nearest"}, ValueError, "'resize' or 'crop'"),
        ({"size_increment": 0}, ValueError, "size_increment=0"),
        ({"resize_targets": "yes"}, TypeError, "resize_targets='yes'"),
        ({"input": ONES[0]}, ValueError, r"images \(N, C, H, W\)"),
        ({"input": [ONES]}, TypeError, "not a list"),
        ({"target": ONES[:, 0, 0, 0], "resize_targets": True}, ValueError, r"of shape \(4,\) .*resize_targets=False"),
        ({"target": torch.ones(3, 8, 8), "resize_targets": True}, ValueError, "same rows, height and width"),
        ({"target": [1], "resize_targets": True}, TypeError, "target has to be a tensor"),
        ({"mode": "crop", "generator": 3}, TypeError, r"generator=3 \(int\) has to be a torch.Generator"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        resize_batch(**{"input": ONES, "target": None, "scale_factor": 0.5, **arguments})


X = torch.rand(4, 3, 32, 48, generator=torch.Generator().manual_seed(1))
Y, MASK = torch.arange(4), torch.arange(4 * 32 * 48).reshape(4, 32, 48)


def batches_of(algorithm, steps, batch=(X, Y), logger=None, **fields):
    """Return a batch after given steps of a training of 10, in its own run."""
    made = []
    given = {"model": nn.Identity(), "algorithms": [algorithm], "max_duration": "10ba", "seed": 7, **fields}
    with Engine(State(**given), logger or Logger()) as engine:
        engine.run_event(Event.INIT)
        for step in steps:
            engine.state.timestamp, engine.state.batch = Timestamp(batch=step), batch
            engine.run_event(Event.AFTER_DATALOADER)
            made.append(engine.state.batch)
    return made


def test_a_training_of_ten_steps_has_these_sizes():
    """Scales 1/2 up to the middle, then 2/3 and 5/6, and 1 from the eighth step on, in multiples of 4."""
    sizes = [tuple(x.shape[-2:]) for x, _ in batches_of(ProgressiveResizing(), range(10))]
    assert sizes == [(16, 24)] * 6 + [(20, 32), (28, 40), (32, 48), (32, 48)]


def test_steps_at_full_size_leave_the_batch_the_same_object():
    batch = (X, Y)
    assert [made is batch for made in batches_of(ProgressiveResizing(), (0, 7, 8, 9), batch)] == [0, 0, 1, 1]


def test_a_size_increment_that_leaves_nothing_to_resize_is_refused():
    with pytest.raises(ArgumentError, match=r"32 x 48 keep their size.*size_increment=64: lower size_increment"):
        batches_of(ProgressiveResizing(size_increment=64), [0], (X, Y))


@pytest.mark.parametrize("argument", ["input_key", "target_key"])
def test_a_setter_that_writes_into_the_loaders_batch_is_refused_before_it_does(argument):
    batch, at = [X, MASK], int(argument == "target_key")
    key = (lambda batch: batch[at], lambda batch, value: batch.__setitem__(at, value))
    with pytest.raises(ArgumentError, match=f"the setter of {argument} .*has to return a copy"):
        batches_of(ProgressiveResizing(resize_targets=True, **{argument: key}), [0], batch)
    assert batch[0] is X and batch[1] is MASK


def test_a_new_batch_takes_the_place_of_the_loaders():
    batch, before = {"image": X, "mask": MASK, "label": Y}, X.clone()
    algorithm = ProgressiveResizing(resize_targets=True, input_key="image", target_key="mask")
    (made,) = batches_of(algorithm, [0], batch)
    x, mask = resize_batch(X, MASK, 0.5, resize_targets=True)
    assert torch.equal(made["image"], x) and torch.equal(made["mask"], mask) and made["label"] is Y
    assert batch["image"] is X and torch.equal(X, before)


def test_crops_come_from_the_runs_own_generator_and_are_the_same_for_images_and_targets():
    before, images = torch.get_rng_state(), MASK.unsqueeze(1)
    generator = torch.Generator().manual_seed(State(seed=7).derive_seed("progressive_resizing"))
    for x, mask in batches_of(ProgressiveResizing(mode="crop", resize_targets=True), range(5), (images, MASK)):
        expected, _ = resize_batch(images, None, 0.5, "crop", generator=generator)
        assert torch.equal(x, expected) and torch.equal(x[:, 0], mask)
    assert torch.equal(torch.get_rng_state(), before)


def test_steps_that_resize_log_scale_and_size():
    recorder = RecordingDestination()
    batches_of(ProgressiveResizing(), (5, 9), logger=Logger([recorder]))
    sizes = {"scale": 0.5, "height": 16, "width": 24}
    assert recorder.metrics == [(5, {f"progressive_resizing/{name}": value for name, value in sizes.items()})]


def test_without_max_duration_it_is_refused_with_the_remedy():
    with pytest.raises(ValueError, match=r"set max_duration, as in Trainer\(max_duration='10ep'\)"):
        batches_of(ProgressiveResizing(), [0], max_duration=None)


def test_with_initial_scale_1_nothing_is_needed_and_nothing_done():
    batch = torch.ones(4, 3), Y
    assert batches_of(ProgressiveResizing(initial_scale=1), [0], batch, max_duration=None)[0] is batch


@pytest.mark.parametrize(
    ("arguments", "batch", "message"),
    [
        ({}, (X[:, 0], Y), r"the input \(input_key=0\) has to be images"),
        ({}, (X.long(), Y), "set mode='crop'"),
        ({"input_key": 2}, (X, Y), "set input_key to where it is"),
        ({"resize_targets": True}, (X, Y), r"the target \(target_key=1\) of shape \(4,\)"),
        ({"resize_targets": True, "target_key": 2}, (X, Y), "set target_key to where it is"),
    ],
)
def test_batches_that_cannot_be_resized_are_refused_before_the_first_step(arguments, batch, message):
    """Also where the training is past all resizing, such as one that is resumed."""
    with pytest.raises((ValueError, TypeError, LookupError), match=message):
        batches_of(ProgressiveResizing(**arguments), [9], batch)


@pytest.mark.parametrize("mode", ["resize", "crop"])
def test_on_digits_it_trains_on_fewer_pixels_ends_at_full_size_and_learns(mode):
    """Of 80 steps 40 are at 4 x 4, 24 on the ramp (half of them round down to 4 x 4), and 16 at 8 x 8."""
    resized, _ = train_on_digits([ProgressiveResizing(mode=mode)], max_duration="10ep")
    assert resized.trained == [4] * 52 + [8] * 28
    assert resized.evaluated == {8}
    assert sum(resized.losses[-8:]) < 0.8 * sum(resized.losses[:8])


def test_a_net_of_fixed_size_fails_at_the_first_step_not_halfway():
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        train_on_digits([ProgressiveResizing()], pool=nn.MaxPool2d(4))
