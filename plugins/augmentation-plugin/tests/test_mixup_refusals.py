"""What MixUp and CutMix refuse, when they are made or at the first batch, with the reason and what to do."""

import functools
from typing import Any

import pytest
import torch
from augmentation_parts import BOTH
from torch import nn
from torch.nn import functional as F

from augmentation_plugin import CutMix, MixUp
from engine_core import Engine, Logger, State
from engine_core.errors import ArgumentError, ArgumentTypeError, EngineError

IMAGES, CLASSES = torch.zeros(4, 3, 8, 8), torch.arange(4)


def first_batch(
    algorithm: Any, batch: Any = (IMAGES, CLASSES), loss_fn: Any = F.cross_entropy, model: Any = None
) -> Any:
    """Fire the event at which a run looks at its first batch."""
    state = State(model=model or nn.Identity(), algorithms=[algorithm], loss_fn=loss_fn, batch=batch, seed=1)
    with Engine(state, Logger()) as engine:
        engine.run_event("after_dataloader")
    return state


@BOTH
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"alpha": 0}, ArgumentError),
        ({"alpha": 1e308}, ArgumentError),
        ({"alpha": "0.2"}, ArgumentTypeError),
        ({"interpolate_loss": 1}, ArgumentTypeError),
        ({"input_key": 0.5}, ArgumentTypeError),
        ({"target_key": None}, ArgumentTypeError),
    ],
)
def test_wrong_arguments_are_refused_at_once(kind, arguments, error):
    with pytest.raises(error, match=next(iter(arguments))):
        kind(**arguments)


@BOTH
@pytest.mark.parametrize("loss_fn", [nn.NLLLoss(), nn.HingeEmbeddingLoss()])
def test_a_loss_of_classes_alone_is_refused_unless_losses_are_mixed(kind, loss_fn):
    with pytest.raises(ArgumentError, match=r"takes (classes|1 and -1), not mixtures.*set interpolate_loss=True"):
        first_batch(kind(), loss_fn=loss_fn)
    first_batch(kind(interpolate_loss=True), loss_fn=loss_fn)


@BOTH
@pytest.mark.parametrize("make", [nn.CrossEntropyLoss, functools.partial(functools.partial, F.cross_entropy)])
@pytest.mark.parametrize(
    ("setting", "words"),
    [({"weight": torch.ones(4)}, "divides by the class weights"), ({"ignore_index": 3}, "with ignore_index=3")],
)
def test_what_cross_entropy_does_otherwise_for_dense_targets_is_refused(kind, make, setting, words):
    with pytest.raises(ArgumentError, match=f"{words}.*set interpolate_loss=True"):
        first_batch(kind(), loss_fn=make(**setting))
    first_batch(kind(interpolate_loss=True), loss_fn=make(**setting))
    first_batch(kind(), (IMAGES, torch.rand(4, 4)), make(weight=torch.ones(4)))  # dense before, dense after


@BOTH
def test_ignored_targets_have_no_dense_form(kind):
    batch = IMAGES, torch.tensor([0, -100, 1, 2])
    with pytest.raises(ArgumentError, match=r"-100 isn't one.*set interpolate_loss=True"):
        first_batch(kind(), batch)
    first_batch(kind(interpolate_loss=True), batch)


@BOTH
def test_an_ignored_target_in_a_later_batch_is_refused_there(kind):
    state = State(model=nn.Identity(), algorithms=[kind()], seed=1, batch=(IMAGES, torch.tensor([0, -100, 1, 2])))
    state.outputs = torch.zeros(4, 3)
    with Engine(state, Logger()) as engine, pytest.raises(EngineError, match="ignores have no dense form"):
        engine.run_event("before_forward")
        engine.run_event("before_loss")


@BOTH
@pytest.mark.parametrize("outputs", [torch.zeros(4), torch.zeros(4, 3, 2)])
def test_outputs_that_do_not_show_the_classes_are_refused(kind, outputs):
    state = State(model=nn.Identity(), algorithms=[kind()], seed=1, batch=(IMAGES, CLASSES), outputs=outputs)
    with Engine(state, Logger()) as engine, pytest.raises(ArgumentError, match="set interpolate_loss=True"):
        engine.run_event("before_forward")
        engine.run_event("before_loss")


@BOTH
@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ((IMAGES,), "target_key=1: a batch of type tuple with 1 items has no item 1; set target_key"),
        ({"image": IMAGES, "label": CLASSES}, "input_key=0.*has no item"),
        ((IMAGES, CLASSES[:3]), r"batch\[1\] of shape \(3,\) has 3 rows and batch\[0\]"),
        ((IMAGES, {"a": CLASSES}), "the targets are a dict.*set interpolate_loss=True"),
        (((IMAGES, IMAGES), CLASSES), "one tensor.*a tuple"),
    ],
)
def test_batches_that_cannot_be_mixed_are_refused(kind, batch, words):
    with pytest.raises(EngineError, match=words):
        first_batch(kind(), batch)


def test_mixup_refuses_token_ids_and_says_why():
    with pytest.raises(ArgumentError, match=r"int64.*the mean of two ids, such as tokens, is the id of something else"):
        first_batch(MixUp(), (torch.zeros(4, 7, dtype=torch.long), CLASSES))


def test_cutmix_takes_images_of_bytes_and_refuses_anything_but_images():
    first_batch(CutMix(), (IMAGES.byte(), CLASSES))
    with pytest.raises(ArgumentError, match=r"input_key=0\) has to be images \(N, C, H, W\), not \(4, 7\)"):
        first_batch(CutMix(), (torch.zeros(4, 7), CLASSES))


@pytest.mark.parametrize(
    "target", [torch.zeros(4, 8, 8).long(), torch.zeros(4, 2, 8, 8), {"mask": torch.zeros(4, 8, 8)}]
)
@pytest.mark.parametrize("interpolate_loss", [False, True])
def test_cutmix_refuses_targets_of_pixels_that_mixup_takes(target, interpolate_loss):
    with pytest.raises(ArgumentError, match="are per pixel"):
        first_batch(CutMix(1.0, interpolate_loss), (IMAGES, target))
    if isinstance(target, torch.Tensor) or interpolate_loss:
        first_batch(MixUp(1.0, interpolate_loss), (IMAGES, target))


@BOTH
def test_a_second_loss_needs_a_loss_function(kind):
    with pytest.raises(ArgumentError, match="Identity has no loss: give Trainer"):
        first_batch(kind(interpolate_loss=True), loss_fn=None)
    first_batch(kind(), loss_fn=None)
