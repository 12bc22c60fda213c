"""What differs on a CUDA device: nothing waits for it, and it mixes as the CPU does."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from augmentation_plugin import CutMix, MixUp
from augmentation_plugin.mixing import Mixing
from engine_core import Engine, Logger, State

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

IMAGES, CLASSES = torch.arange(6.0).view(6, 1, 1, 1).expand(6, 3, 8, 8).contiguous(), torch.arange(6)


@pytest.mark.parametrize("interpolate_loss", [False, True])
@pytest.mark.parametrize("kind", [MixUp, CutMix])
def test_a_step_does_not_wait_for_the_device_and_mixes_as_the_cpu_does(
    kind: type[Mixing], interpolate_loss: bool
) -> None:
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
