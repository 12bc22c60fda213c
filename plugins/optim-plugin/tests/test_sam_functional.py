"""Sharpness-aware gradients in a custom loop."""

import math
import weakref

import pytest
import torch
from torch import nn

from engine_core import Engine, Event, Logger, State
from engine_core.state import LoopControl
from optim_plugin import SAM, held_buffers, sharpness_aware_gradients


def test_the_closure_sees_the_weights_of_the_formula() -> None:
    one, other = nn.Parameter(torch.tensor([1.0, 2.0])), nn.Parameter(torch.tensor([3.0], dtype=torch.double))
    one.grad, other.grad = torch.tensor([2.0, 3.0]), torch.tensor([6.0], dtype=torch.double)  # norm 7
    seen: list[list[float]] = []
    assert sharpness_aware_gradients([one, other, one], lambda: seen.extend(p.tolist() for p in (one, other)) or 5, 0.7)
    assert seen[0] == pytest.approx([1.2, 2.3], abs=1e-6) and seen[1] == pytest.approx([3.6], abs=1e-6)
    assert one.tolist() == [1.0, 2.0] and other.tolist() == [3.0]


def test_weights_come_back_bit_for_bit_where_subtracting_would_not() -> None:
    weight = nn.Parameter(torch.tensor([1e-8, 1.0, -0.0, 1e30]))
    weight.grad = torch.tensor([1.0, 1.0, 0.0, 1.0])
    before = weight.detach().clone()
    with pytest.raises(KeyboardInterrupt):
        sharpness_aware_gradients([weight], _interrupt, rho=1e4)
    assert torch.equal(weight, before) and math.copysign(1.0, weight[2].item()) == -1.0


def _interrupt() -> None:
    raise KeyboardInterrupt


def test_the_first_gradients_are_free_while_the_closure_runs() -> None:
    weight = nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    storage = weakref.ref(weight.grad)

    def closure() -> bool:
        weight.grad = None
        return storage() is None

    assert sharpness_aware_gradients([weight], closure)


def test_half_precision_does_not_overflow_in_the_norm() -> None:
    weight = nn.Parameter(torch.zeros(1024, dtype=torch.half))
    weight.grad = torch.full((1024,), 4096.0, dtype=torch.half)  # its norm is 131072, the largest half 65504
    assert sharpness_aware_gradients([weight], lambda: weight.double().norm().item(), rho=1.0) == 1.0


def test_a_sparse_gradient_is_refused() -> None:
    embedding = nn.Embedding(4, 2, sparse=True)
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match=r"shape \(4, 2\) has a sparse gradient.*sparse=False"):
        sharpness_aware_gradients(embedding.parameters(), lambda: None)


@pytest.mark.parametrize(("dtype", "value"), [(torch.float32, 1e-40), (torch.half, 3e-7)])
def test_a_gradient_too_small_to_be_scaled_is_not_a_direction(dtype: torch.dtype, value: float) -> None:
    weight = nn.Parameter(torch.ones(1, dtype=dtype))
    weight.grad = torch.full((1,), value, dtype=dtype)
    assert sharpness_aware_gradients([weight], lambda: 1, rho=0.05) is None
    assert weight.item() == 1.0


def test_arguments_are_checked_before_anything() -> None:
    weight = nn.Parameter(torch.ones(1))
    with pytest.raises(ValueError, match="rho=-1"):
        sharpness_aware_gradients([weight], lambda: 1, rho=-1)
    with pytest.raises(TypeError, match="closure=None can't be called"):
        sharpness_aware_gradients([weight], None)  # type: ignore[arg-type]


def test_sparse_embeddings_are_refused_at_the_first_batch() -> None:
    model = nn.Sequential(nn.Embedding(4, 2, sparse=True))
    state = State(model=model, loop=LoopControl(closure=lambda: torch.zeros(())))
    with pytest.raises(ValueError, match=r"sam can't train '0', whose gradient is sparse: .*sparse=False"):
        SAM().validate(state)
    model.requires_grad_(False)
    SAM().validate(state)


def test_a_frozen_parameter_with_an_old_gradient_is_left_alone() -> None:
    frozen, weight = nn.Parameter(torch.ones(2), requires_grad=False), nn.Parameter(torch.zeros(1))
    frozen.grad, weight.grad = torch.ones(2), torch.ones(1)
    assert sharpness_aware_gradients([frozen, weight], lambda: (frozen.tolist(), weight.item()), 1.0) == ([1, 1], 1)


class Counting(nn.Module):
    """Has buffers of all kinds, and changes them in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))
        self.register_buffer("replaced", torch.zeros(2), persistent=False)
        self.register_buffer("expanded", torch.ones(1).expand(3))
        self.register_buffer("none", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        self.replaced = self.replaced + 1
        self.expanded = (self.expanded * 2).mean().expand(3)
        return x


def test_buffers_are_held() -> None:
    model = nn.Sequential(Counting(), nn.BatchNorm1d(3))
    buffers = list(model.buffers())
    with pytest.raises(ZeroDivisionError), held_buffers(model):
        model(torch.randn(4, 3))
        assert model[0].seen == 1 and model[1].num_batches_tracked == 1
        raise ZeroDivisionError
    assert all(one is other for one, other in zip(model.buffers(), buffers, strict=True))
    assert model[0].expanded.tolist() == [1.0, 1.0, 1.0]
    assert model[0].seen == 0 and model[0].replaced.tolist() == [0.0, 0.0]
    assert model[1].num_batches_tracked == 0 and model[1].running_var.tolist() == [1.0, 1.0, 1.0]


def test_a_custom_loop_offers_its_closure() -> None:
    """Without optimizers in State the parameters are the model's."""
    model = nn.Linear(2, 1)
    x, y = torch.randn(4, 2), torch.randn(4, 1)

    def closure() -> torch.Tensor:
        model.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    expected = nn.Linear(2, 1)
    expected.load_state_dict(model.state_dict())
    state = State(model=model, algorithms=[SAM(rho=0.5)], loop=LoopControl(closure=closure), seed=1)
    with Engine(state, Logger()) as engine:
        closure()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        engine.run_event(Event.AFTER_TRAIN_BATCH)
    norm = torch.cat([g.flatten() for g in gradients]).norm()
    with torch.no_grad():
        for p, g in zip(expected.parameters(), gradients, strict=True):
            p.add_(0.5 * g / norm)
    nn.functional.mse_loss(expected(x), y).backward()
    for p, q in zip(model.parameters(), expected.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None and torch.allclose(p.grad, q.grad, atol=1e-6)
