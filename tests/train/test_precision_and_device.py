"""Number formats and devices, and what is said where there is none."""

import pytest
import torch
from torch import nn

from engine_core.errors import ArgumentError

from .parts import Memory, at, batches, linear, same, trainer

CPU = torch.device("cpu")


def message(**settings):
    with pytest.raises(ArgumentError) as error:
        trainer(**settings)
    return str(error.value)


NO_VALUES = "the model is on the meta device and has no values; give it some with model.to_empty(...)"
SPREAD = "the model is spread over several devices (0.weight on cpu, 1.weight on meta); move it with model.to(...)"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"precision": "amp_bf17"}, "precision 'amp_bf17' is unknown; did you mean 'amp_bf16'?"),
        ({"precision": 16}, "precision 16 is unknown; known: amp_bf16, amp_fp16, fp32"),
        ({"precision": "amp_fp16"}, "precision 'amp_fp16' needs a CUDA device, this is cpu; use 'amp_bf16' or 'fp32'"),
        *(
            ({"device": device}, f"device {device!r} is not 'auto', 'cpu', 'cuda' or 'mps'")
            for device in ("gpu", "cpu:x", None, 1.5)
        ),
        *(({"model": nn.Linear(4, 3, device="meta"), "device": device}, NO_VALUES) for device in ("auto", "cpu")),
        ({"model": nn.Sequential(linear(), nn.Linear(3, 3, device="meta"))}, SPREAD),
    ],
)
def test_what_can_not_run_is_refused_with_what_can(settings, expected):
    assert message(**settings) == expected


def test_forward_and_loss_run_under_autocast_in_training_and_evaluation_and_plugins_outside_of_it():
    """On the CPU autocast makes products of matrices bfloat16; weights and their gradients stay float32."""
    seen, outside = [], []
    events = ("before_forward", "after_forward", "after_loss", "eval_after_forward")
    notes = [at(event, lambda state: outside.append(torch.is_autocast_enabled("cpu"))) for event in events]

    def loss(outputs, targets):
        seen.append((outputs.dtype, torch.is_autocast_enabled("cpu")))
        return nn.functional.cross_entropy(outputs, targets)

    evaluated = {"eval_dataloader": batches(3), "callbacks": notes}
    made = trainer(batches(8), loss_fn=loss, precision="amp_bf16", **evaluated)
    made.fit()
    assert (seen, outside) == ([(torch.bfloat16, True)] * 2, [False] * 4)
    assert {(p.dtype, p.grad.dtype) for p in made.state.model.parameters()} == {(torch.float32,) * 2}
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("microbatch_size", [None, 4])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_scaled_gradients_are_unscaled_before_clipping_and_stepping(reduction, microbatch_size):
    """With a scaler of the CPU, in the place that the one of CUDA has; by hand it is torch's own recipe."""
    loss_fn = nn.CrossEntropyLoss(reduction=reduction)
    ours, theirs = linear(), linear()
    optimizer, scaler = torch.optim.SGD(theirs.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=1024.0)
    for inputs, targets in batches(8, 8):
        optimizer.zero_grad()
        loss = loss_fn(theirs(inputs), targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(theirs.parameters(), 0.05)
        scaler.step(optimizer)
        scaler.update()
    made = trainer(batches(8, 8), ours, loss_fn=loss_fn, grad_clip_norm=0.05, microbatch_size=microbatch_size)
    made._session.precision.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    made.fit()
    most = 0 if microbatch_size is None else 2e-6
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=most, atol=most)


def test_a_step_whose_scaled_gradients_overflow_is_left_out():
    memory, model = Memory(), linear()
    before = model.weight.detach().clone()
    data = [(100 * inputs, targets) for inputs, targets in batches(8)]
    made = trainer(data, model, loggers=memory)
    made._session.precision.scaler = torch.amp.GradScaler("cpu", init_scale=1e38)
    made.fit()
    assert same(model.weight.detach(), before)
    (loss,) = [nn.functional.cross_entropy(linear()(inputs), targets).item() for inputs, targets in data]
    assert memory.values("train/loss") == [(0, loss)]


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what is said where there is no CUDA")
def test_a_device_that_is_not_there_is_refused():
    for device in ("cuda", "cuda:3"):
        assert message(device=device) == f"device '{device}' is not available here; use 'auto' or 'cpu'"


def test_the_loss_and_the_metrics_go_to_the_device_with_the_model():
    """A loss has weights of classes, a metric has counts."""
    moved = []

    class Moves:
        def to(self, *where):
            moved.append((type(self).__name__, *where))
            return super().to(*where)

    class Weighted(Moves, nn.CrossEntropyLoss):
        pass

    class Counts(Moves, nn.Module):
        update = compute = reset = nn.Module.forward

    trainer(loss_fn=Weighted(torch.ones(3)), metrics={"counts": Counts()})
    assert moved == [("Weighted", CPU), ("Counts", CPU)]
