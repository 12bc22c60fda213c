"""On a CUDA device all draw and compute what they do on the CPU, and nothing waits for the device."""

from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from augmentation_plugin import (
    CutMix,
    MixUp,
    alternating_flip_batch,
    col_out_batch,
    cutout_batch,
    rand_augment_batch,
    random_shift_batch,
    resize_batch,
)
from engine_core import Engine, Logger, State

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@contextmanager
def waiting_is_an_error():
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def seeded():
    return torch.Generator().manual_seed(0)


def test_holes_are_those_of_the_cpu():
    images = torch.randn(16, 3, 32, 32).to(memory_format=torch.channels_last)
    on_device = images.cuda()
    with waiting_is_an_error():
        holed = cutout_batch(on_device, 3, 0.3, generator=seeded())
    assert holed.stride() == images.stride()
    assert torch.equal(holed.cpu(), cutout_batch(images, 3, 0.3, generator=seeded()))


@pytest.mark.parametrize("mode", ["resize", "crop"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
def test_sizes_and_windows_are_those_of_the_cpu(mode, dtype):
    images, masks = (torch.rand(8, 3, 32, 48) * 255).to(dtype), torch.randint(9, (8, 32, 48))
    given = images.cuda(), masks.cuda()
    with waiting_is_an_error():
        smaller, targets = resize_batch(*given, 0.6, mode, resize_targets=True, generator=seeded())
    here, here_targets = resize_batch(images, masks, 0.6, mode, resize_targets=True, generator=seeded())
    assert smaller.dtype is dtype and torch.equal(targets.cpu(), here_targets)
    torch.testing.assert_close(smaller.cpu(), here, rtol=1e-2, atol=1)


@pytest.mark.parametrize(
    "function",
    [
        lambda images: alternating_flip_batch(images, torch.arange(16, device=images.device), 0),
        lambda images: random_shift_batch(images, 3, generator=seeded()),
        lambda images: random_shift_batch(images, 3, "reflect", generator=seeded()),
        lambda images: col_out_batch(images, None, generator=seeded())[0],
    ],
)
def test_pixels_come_from_where_they_come_on_the_cpu(function):
    images = torch.randn(16, 3, 32, 24).to(memory_format=torch.channels_last)
    on_device = images.cuda()
    with waiting_is_an_error():
        moved = function(on_device)
    assert moved.is_contiguous(memory_format=torch.channels_last) and torch.equal(moved.cpu(), function(images))


def test_operations_are_those_of_the_cpu_but_for_pixels_between_two():
    images = torch.randn(64, 3, 32, 24)
    on_device = images.cuda()
    with waiting_is_an_error():
        changed = rand_augment_batch(on_device, generator=seeded())
    here = rand_augment_batch(images, generator=seeded())
    assert torch.isclose(changed.cpu(), here, rtol=1e-4, atol=1e-4).float().mean() > 0.999


IMAGES, CLASSES = torch.arange(6.0).view(6, 1, 1, 1).expand(6, 3, 8, 8).contiguous(), torch.arange(6)


@pytest.mark.parametrize("interpolate_loss", [False, True])
@pytest.mark.parametrize("kind", [MixUp, CutMix])
def test_a_step_does_not_wait_for_the_device_and_mixes_as_the_cpu_does(kind, interpolate_loss):
    losses = []
    for device in ("cpu", "cuda"):
        state = State(model=nn.Identity(), algorithms=[kind(1.0, interpolate_loss)], seed=1, loss_fn=F.cross_entropy)
        images, classes, weight = IMAGES.to(device), CLASSES.to(device), torch.ones(3, 6, device=device).tril()
        with Engine(state, Logger()) as engine:
            state.batch = (images, classes)
            torch.cuda.set_sync_debug_mode("error")
            try:
                engine.run_event("before_train_batch")
                engine.run_event("before_forward")
                state.outputs = state.batch[0].mean((2, 3)) @ weight
                engine.run_event("after_forward")
                engine.run_event("before_loss")
                state.loss = F.cross_entropy(state.outputs, state.batch[1])
                engine.run_event("after_loss")
            finally:
                torch.cuda.set_sync_debug_mode("default")
            losses.append(state.loss.cpu())
    torch.testing.assert_close(*losses)
