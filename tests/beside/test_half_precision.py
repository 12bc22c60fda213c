"""fp16 with a scaler of losses, on the CPU too, for which the libraries have to be talked into it."""

import pytest
import torch
import transformers
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from lightning.pytorch.plugins.precision import MixedPrecision
from torch.nn import functional as F

from engine_core import Event
from engine_core_author.probes import at_events
from engine_core_transformers import EngineTrainer

from .accelerate_runs import Run
from .cases import EPOCHS, LEARNING_RATE, MOMENTUM, make_loaders, make_net
from .lightning_runs import ITS_WARNINGS, Digits, make_callback, make_trainer
from .transformers_runs import InOrder
from .transformers_runs import make_trainer as make_transformers_trainer

pytestmark = ITS_WARNINGS
OVERFLOWS, SAFE = 2.0**30, 2.0**10
"""Scales of losses: with the first the gradients of the first step overflow, which is left out. The second comes next.

The scales between are left out: near the largest that does not overflow, rounding decides.
"""


@pytest.fixture(
    params=["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"))]
)
def device(request, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    AcceleratorState._reset_state(reset_partial_state=True)
    yield request.param
    AcceleratorState._reset_state(reset_partial_state=True)


def make_scaler(device):
    return torch.amp.GradScaler(device, init_scale=OVERFLOWS, backoff_factor=SAFE / OVERFLOWS)


def halve(accelerator, device):
    """Make it one of fp16, which Accelerate refuses on a CPU, although torch can do it."""
    accelerator.state._mixed_precision, accelerator.native_amp = "fp16", True
    accelerator.scaler = make_scaler(device)
    return accelerator


def make_accelerator(device):
    AcceleratorState._reset_state()
    return halve(Accelerator(cpu=device == "cpu", mixed_precision="bf16"), device)


def accelerate_alone(device, _):
    """Train as Accelerate's guide shows it."""
    accelerator, net, (loader, _) = make_accelerator(device), make_net(), make_loaders()
    optimizer = torch.optim.SGD(net.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    model, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    for _ in range(EPOCHS):
        for batch in loader:
            optimizer.zero_grad()
            accelerator.backward(F.cross_entropy(model(batch[0]), batch[1]))
            optimizer.step()
    return net.state_dict()


def accelerate_with_engine(device, _, *callbacks):
    run = Run("none", accelerator=make_accelerator(device), callbacks=callbacks)
    run.train()
    return run.net.state_dict()


def lightning_with(device, *callbacks):
    module, precision = Digits(), MixedPrecision("16-mixed", device, make_scaler(device))
    kind = "cpu" if device == "cpu" else "gpu"
    make_trainer(callbacks, accelerator=kind, plugins=[precision]).fit(module, *make_loaders())
    return module.net.state_dict()


def make_half_transformers(device, folder, **more):
    trainer = make_transformers_trainer(folder, args={"bf16": True, "use_cpu": device == "cpu"}, **more)
    halve(trainer.accelerator, device)
    trainer.args.bf16, trainer.args.fp16 = False, True
    return trainer


def transformers_with(device, folder, **more):
    trainer = make_half_transformers(device, folder, **more)
    trainer.train()
    return trainer.model.net.state_dict()


class Plain(InOrder, transformers.Trainer):
    """The library's own, which gets what only ours takes, and leaves it."""

    def __init__(self, *, algorithms, loss_fn, **given):
        super().__init__(**given)


ALONE = {
    "accelerate": accelerate_alone,
    "lightning": lambda device, _: lightning_with(device),
    "transformers": lambda device, folder: transformers_with(device, folder, kind=Plain),
}
WITH_ENGINE = {
    "accelerate": accelerate_with_engine,
    "lightning": lambda device, _, *own: lightning_with(device, make_callback("none", callbacks=own)),
    "transformers": lambda device, folder, *own: transformers_with(device, folder, engine_callbacks=own),
}


def net_of(state):
    return getattr(state.model, "net", state.model)


@pytest.mark.parametrize("library", ALONE)
def test_weights_are_the_librarys_own_with_a_step_left_out_for_its_gradients(library, device, tmp_path):
    steps = []
    watch = at_events([Event.BATCH_END], lambda _, state: steps.append(net_of(state)[0].weight.detach().clone()))
    with_engine = WITH_ENGINE[library](device, tmp_path, watch)
    assert torch.equal(steps[0].cpu(), make_net()[0].weight) and not torch.equal(steps[1], steps[0])
    theirs = ALONE[library](device, tmp_path)
    for name, value in theirs.items():
        # On a CPU to the bit.
        assert torch.allclose(with_engine[name], value, rtol=0, atol=0 if device == "cpu" else 1e-4), name


@pytest.mark.parametrize("library", WITH_ENGINE)
def test_after_train_batch_gradients_are_without_the_scale(library, device, tmp_path):
    norms = []
    watch = at_events(
        [Event.AFTER_TRAIN_BATCH], lambda _, state: norms.append(net_of(state)[-2].weight.grad.norm().item())
    )
    WITH_ENGINE[library](device, tmp_path, watch)
    assert len(norms) == 14
    assert all(0.01 < norm < 10 for norm in norms[1:]), norms


class Clipping(EngineTrainer):
    """A user's own clipping of values, which needs gradients without the scale too."""

    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        self.accelerator.clip_grad_value_(self.model.parameters(), 0.01)
        return loss


class Unscaling(transformers.TrainerCallback):
    """A user's own look at the gradients."""

    def __init__(self):
        self.largest = []

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        self.accelerator.unscale_gradients()
        self.largest.append(max(p.grad.abs().max().item() for p in kwargs["model"].parameters()))


def test_transformers_gradients_are_unscaled_once_whoever_asks(device, tmp_path):
    kind, seen = type("Ours", (InOrder, Clipping), {}), Unscaling()
    trainer = make_half_transformers(device, tmp_path, kind=kind, callbacks=[seen])
    seen.accelerator = trainer.accelerator
    trainer.train()
    assert len(seen.largest) == 14 and max(seen.largest[1:]) == pytest.approx(0.01)
