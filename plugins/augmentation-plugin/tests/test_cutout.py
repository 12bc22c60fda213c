"""CutOut in an engine and in whole trainings: what it changes, when, in which order, and that it can be resumed."""

import json
from typing import Any

import pytest
import torch
from augmentation_parts import train_on_digits
from torch import nn

from augmentation_plugin import CutOut, ProgressiveResizing, cutout_batch
from engine_core import Algorithm, Engine, Event, Logger, State
from engine_core.errors import ArgumentError
from engine_core_author.audit_callback import Audit

X, Y = torch.rand(8, 1, 16, 16, generator=torch.Generator().manual_seed(1)) + 1, torch.arange(8)


def drawn(algorithm: Algorithm, steps: int, seed: int = 7, batch: Any = (X, Y)) -> list[Any]:
    """Return the batches of some steps of a run of its own."""
    batches = []
    with Engine(State(model=nn.Identity(), algorithms=[algorithm], seed=seed, max_duration="9ba"), Logger()) as engine:
        engine.run_event(Event.INIT)
        for _ in range(steps):
            engine.state.batch = batch
            engine.run_event(Event.AFTER_DATALOADER)
            batches.append(engine.state.batch)
    return batches


def test_a_new_batch_with_the_functions_holes_takes_the_place_of_the_loaders() -> None:
    before = X.clone()
    generator = torch.Generator().manual_seed(State(seed=7).derive_seed("cutout"))
    for images, classes in drawn(CutOut(2, 0.25), 3):
        assert torch.equal(images, cutout_batch(X, 2, 0.25, generator=generator))
        assert classes is Y
    assert torch.equal(X, before)


def test_only_the_item_under_input_key_is_replaced() -> None:
    batch = {"image": X, "mask": X, "label": Y}
    (changed,) = drawn(CutOut(input_key="image"), 1, batch=batch)
    assert (changed["image"] == 0).any() and changed["mask"] is X and changed["label"] is Y
    assert batch["image"] is X


def test_a_setter_that_writes_into_the_loaders_batch_is_refused_before_it_does() -> None:
    batch = {"deep": {"image": X}}
    in_place = (lambda batch: batch["deep"]["image"], lambda batch, value: batch["deep"].update(image=value))
    with pytest.raises(ArgumentError, match=r"the setter of input_key .*has to return a copy"):
        drawn(CutOut(input_key=in_place), 1, batch=batch)
    assert batch["deep"]["image"] is X


def test_a_resumed_run_draws_what_the_uninterrupted_one_draws() -> None:
    algorithm, resumed = CutOut(), CutOut()
    whole = drawn(CutOut(), 5)
    drawn(algorithm, 3)
    resumed.load_state_dict(algorithm.state_dict())
    rest = drawn(resumed, 2)
    assert [torch.equal(a[0], b[0]) for a, b in zip(rest, whole[3:], strict=True)] == [True, True]


def test_two_instances_in_a_run_draw_different_holes() -> None:
    state = State(model=nn.Identity(), algorithms=[CutOut(), CutOut()], seed=7, max_duration="9ba", batch=(X, Y))
    with Engine(state, Logger()) as engine:
        engine.run_event(Event.AFTER_DATALOADER)
    assert (state.batch[0] == 0).sum() > (drawn(CutOut(), 1)[0][0] == 0).sum()


def test_a_state_that_is_not_its_own_is_refused() -> None:
    with pytest.raises(ArgumentError, match="the state of cutout has no 'generator'"):
        CutOut().load_state_dict(json.loads('{"rng": 1}'))


@pytest.mark.parametrize(
    ("batch", "input_key", "message"),
    [
        ((X[:, 0], Y), 0, r"the input \(input_key=0\) has to be images .*\(8, 16, 16\): give greyscale images"),
        ((X, Y), 1, r"input_key=1\) has to be images"),
        ((X, Y), 2, "input_key=2: .* has no item 2; set input_key to where it is"),
        ({"image": X}, "img", "did you mean 'image'"),
    ],
)
def test_batches_without_images_are_refused_before_the_first_step(batch: Any, input_key: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError, LookupError), match=message):
        drawn(CutOut(input_key=input_key), 1, batch=batch)


@pytest.mark.parametrize("arguments", [{"num_holes": 0}, {"length": 2}, {"length": "1"}, {"input_key": 1.5}])
def test_arguments_are_refused_when_it_is_made(arguments: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError), match=next(iter(arguments))):
        CutOut(**arguments)


@pytest.mark.parametrize("step", [1, -1])
def test_holes_are_cut_into_resized_images_in_both_orders_of_the_list(step: int) -> None:
    """So their edges are sharp, and their side is of the size that the model sees."""
    state = State(model=nn.Identity(), algorithms=[CutOut(), ProgressiveResizing()][::step], max_duration="9ba", seed=1)
    with Engine(state, Logger()) as engine:
        state.batch = (X, Y)
        traces = engine.run_event(Event.AFTER_DATALOADER)
    assert list(traces) == ["ProgressiveResizing/AFTER_DATALOADER", "CutOut/AFTER_DATALOADER"]
    erased = (state.batch[0] == 0).sum((1, 2, 3))
    assert state.batch[0].shape[-1] == 8 and 0 < erased.max() <= 16


@pytest.mark.full
def test_on_digits_the_training_loss_gets_higher_with_the_size_of_the_holes_and_still_falls() -> None:
    several = ([], [CutOut(length=0.25)], [CutOut(length=0.5)])
    none, small, large = (train_on_digits(algorithms, max_duration="16ep")[0].losses for algorithms in several)
    final = [sum(losses[-16:]) / 16 for losses in (none, small, large)]
    assert 0 < final[0] < 0.7 * final[1] < 0.49 * final[2] < 0.5 * large[0]


def test_the_audit_finds_nothing_in_microbatches_and_mixed_precision() -> None:
    audit, algorithms = Audit(on_finding="error"), [CutOut(), ProgressiveResizing(mode="crop")]
    train_on_digits(algorithms, audit, microbatch_size=24, precision="amp_bf16")
    assert audit.findings == []
