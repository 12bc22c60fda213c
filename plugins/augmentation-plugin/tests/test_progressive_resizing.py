"""ProgressiveResizing in an engine and in whole trainings: sizes by step, refusals, logs, resume, pixels saved."""

from itertools import permutations
from typing import Any

import pytest
import torch
from augmentation_parts import train_on_digits
from torch import nn

from augmentation_plugin import CutMix, CutOut, MixUp, ProgressiveResizing, resize_batch
from engine_core import Engine, Event, Logger, State, Timestamp
from engine_core.errors import ArgumentError
from engine_core_author import RecordingDestination

X = torch.rand(4, 3, 32, 48, generator=torch.Generator().manual_seed(1))
Y, MASK = torch.arange(4), torch.arange(4 * 32 * 48).reshape(4, 32, 48)


def batches_of(algorithm: Any, steps: Any, batch: Any = (X, Y), logger: Any = None, **fields: Any) -> list[Any]:
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


def test_a_training_of_ten_steps_has_these_sizes() -> None:
    """Scales 1/2 up to the middle, then 2/3 and 5/6, and 1 from the eighth step on, in multiples of 4."""
    sizes = [tuple(x.shape[-2:]) for x, _ in batches_of(ProgressiveResizing(), range(10))]
    assert sizes == [(16, 24)] * 6 + [(20, 32), (28, 40), (32, 48), (32, 48)]


def test_steps_at_full_size_leave_the_batch_the_same_object() -> None:
    batch = (X, Y)
    assert [made is batch for made in batches_of(ProgressiveResizing(), (0, 7, 8, 9), batch)] == [0, 0, 1, 1]


def test_a_size_increment_that_leaves_nothing_to_resize_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"32 x 48 keep their size.*size_increment=64: lower size_increment"):
        batches_of(ProgressiveResizing(size_increment=64), [0], (X, Y))


@pytest.mark.parametrize("argument", ["input_key", "target_key"])
def test_a_setter_that_writes_into_the_loaders_batch_is_refused_before_it_does(argument: str) -> None:
    batch, at = [X, MASK], int(argument == "target_key")
    key = (lambda batch: batch[at], lambda batch, value: batch.__setitem__(at, value))
    with pytest.raises(ArgumentError, match=f"the setter of {argument} .*has to return a copy"):
        batches_of(ProgressiveResizing(resize_targets=True, **{argument: key}), [0], batch)
    assert batch[0] is X and batch[1] is MASK


def test_a_new_batch_takes_the_place_of_the_loaders() -> None:
    batch, before = {"image": X, "mask": MASK, "label": Y}, X.clone()
    algorithm = ProgressiveResizing(resize_targets=True, input_key="image", target_key="mask")
    (made,) = batches_of(algorithm, [0], batch)
    x, mask = resize_batch(X, MASK, 0.5, resize_targets=True)
    assert torch.equal(made["image"], x) and torch.equal(made["mask"], mask) and made["label"] is Y
    assert batch["image"] is X and torch.equal(X, before)


def test_crops_come_from_the_runs_own_generator_and_are_the_same_for_images_and_targets() -> None:
    before, images = torch.get_rng_state(), MASK.unsqueeze(1)
    generator = torch.Generator().manual_seed(State(seed=7).derive_seed("progressive_resizing"))
    for x, mask in batches_of(ProgressiveResizing(mode="crop", resize_targets=True), range(5), (images, MASK)):
        expected, _ = resize_batch(images, None, 0.5, "crop", generator=generator)
        assert torch.equal(x, expected) and torch.equal(x[:, 0], mask)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_resumed_run_crops_where_the_uninterrupted_one_crops() -> None:
    whole = batches_of(ProgressiveResizing(mode="crop"), range(6))
    algorithm, resumed = ProgressiveResizing(mode="crop"), ProgressiveResizing(mode="crop")
    batches_of(algorithm, range(3))
    resumed.load_state_dict(algorithm.state_dict())
    rest = batches_of(resumed, range(3, 6))
    assert all(torch.equal(a[0], b[0]) for a, b in zip(rest, whole[3:], strict=True))
    assert len({float(x[0, 0, 0, 0]) for x, _ in whole}) == 6


def test_interpolation_draws_and_saves_nothing() -> None:
    algorithm = ProgressiveResizing()
    batches_of(algorithm, range(3))
    assert algorithm.state_dict() == {}


def test_steps_that_resize_log_scale_and_size() -> None:
    recorder = RecordingDestination()
    batches_of(ProgressiveResizing(), (5, 9), logger=Logger([recorder]))
    sizes = {"scale": 0.5, "height": 16, "width": 24}
    assert recorder.metrics == [(5, {f"progressive_resizing/{name}": value for name, value in sizes.items()})]


def test_without_max_duration_it_is_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"set max_duration, as in Trainer\(max_duration='10ep'\)"):
        batches_of(ProgressiveResizing(), [0], max_duration=None)


def test_with_initial_scale_1_nothing_is_needed_and_nothing_done() -> None:
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
def test_batches_that_cannot_be_resized_are_refused_before_the_first_step(
    arguments: dict[str, Any], batch: Any, message: str
) -> None:
    """Also where the training is past all resizing, such as one that is resumed."""
    with pytest.raises((ValueError, TypeError, LookupError), match=message):
        batches_of(ProgressiveResizing(**arguments), [9], batch)


@pytest.mark.parametrize("mode", ["resize", "crop"])
def test_on_digits_it_trains_on_fewer_pixels_ends_at_full_size_and_learns(mode: str) -> None:
    """Of 80 steps 40 are at 4 x 4, 24 on the ramp (half of them round down to 4 x 4), and 16 at 8 x 8."""
    resized, _ = train_on_digits([ProgressiveResizing(mode=mode)], max_duration="10ep")
    assert resized.trained == [4] * 52 + [8] * 28
    assert resized.evaluated == {8}
    assert sum(resized.losses[-8:]) < 0.8 * sum(resized.losses[:8])


def test_a_net_of_fixed_size_fails_at_the_first_step_not_halfway() -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        train_on_digits([ProgressiveResizing()], pool=nn.MaxPool2d(4))


@pytest.mark.full
def test_orders_of_a_list_with_cutout_mixup_and_cutmix_train_the_same() -> None:
    four = (lambda: ProgressiveResizing(mode="crop", size_increment=1), CutOut, MixUp, CutMix)
    orders = [[make() for make in order] for order in permutations(four)]
    runs = [train_on_digits(algorithms, max_duration="2ep")[0] for algorithms in orders[::3]]
    assert {tuple(run.trained) for run in runs} == {(4,) * 9 + (5, 6, 7, 7, 8, 8, 8)}
    for run in runs[1:]:
        assert run.losses == runs[0].losses
