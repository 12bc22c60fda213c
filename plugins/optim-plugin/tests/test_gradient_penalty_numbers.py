"""The penalty and its gradient are those of the formula."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from engine_core import Engine, Logger, State
from engine_core.errors import EngineError
from optim_plugin import GradientPenalty, input_gradient_penalty


def net(*, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)).double()


def data(rows: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(rows, 3, generator=generator, dtype=torch.double), torch.arange(rows) % 4


def penalised(model: nn.Module, x: torch.Tensor, y: torch.Tensor, weight: float = 2.0) -> torch.Tensor:
    x = x.detach().requires_grad_()
    loss = F.cross_entropy(model(x), y)
    return loss + weight * input_gradient_penalty(loss, x)


def test_its_value_is_that_of_finite_differences_by_each_input() -> None:
    model, (x, y), step = net(), data(), 1e-5
    total = 0.0
    for i in range(x.numel()):
        offset = torch.zeros(x.numel(), dtype=torch.double)
        offset[i] = step
        up, down = (F.cross_entropy(model(x + sign * offset.view_as(x)), y) for sign in (1, -1))
        total += (x.shape[0] * (up - down) / (2 * step)).item() ** 2  # that of the row's own loss
    inputs = x.requires_grad_()
    penalty = input_gradient_penalty(F.cross_entropy(model(inputs), y), inputs)
    assert penalty.item() == pytest.approx(total / x.shape[0], rel=1e-6)


def test_its_gradient_is_that_of_central_finite_differences() -> None:
    model, (x, y), step = net(), data(), 1e-6
    penalised(model, x, y).backward()
    for parameter in model.parameters():
        expected = torch.zeros_like(parameter)
        for i in range(parameter.numel()):
            values = []
            for sign in (1, -1):
                with torch.no_grad():
                    parameter.view(-1)[i] += sign * step
                values.append(penalised(model, x, y).item())
                with torch.no_grad():
                    parameter.view(-1)[i] -= sign * step
            expected.view(-1)[i] = (values[0] - values[1]) / (2 * step)
        assert parameter.grad is not None and torch.allclose(parameter.grad, expected, rtol=1e-6, atol=1e-8)


def test_a_linear_model_has_it_in_closed_form() -> None:
    """With n outputs w x as losses each row's gradient is w, so the penalty is |w|^2 and its gradient 2 w."""
    for n, reduced in ((6, torch.mean), (1, torch.sum)):
        model, x = nn.Linear(3, 1, bias=False).double(), data()[0].requires_grad_()
        penalty = input_gradient_penalty(reduced(model(x)), x, n) * n / 6
        penalty.backward()
        assert penalty.item() == pytest.approx(model.weight.square().sum().item())
        assert model.weight.grad is not None and torch.allclose(model.weight.grad, 2 * model.weight)


@pytest.mark.parametrize("detached", [True, False])
def test_a_loss_that_does_not_depend_on_the_inputs_is_refused(detached: bool) -> None:
    x, w = torch.ones(2, 3).requires_grad_(), nn.Parameter(torch.ones(()))
    with pytest.raises(ValueError, match=r"does not depend on the inputs of shape \(2, 3\)"):
        input_gradient_penalty(w.detach() if detached else w * 1, x)


def test_a_batch_without_rows_has_no_penalty() -> None:
    x = torch.ones(0, 3, requires_grad=True)
    assert [input_gradient_penalty(x.sum(), x, rows).item() for rows in (None, 0)] == [0.0, 0.0]


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # torch's own, while it imports its compiler
@pytest.mark.parametrize("what", ["the model", "'1'", "'loss_fn'"])
def test_what_is_compiled_has_no_second_derivative_and_is_refused_at_the_first_batch(what: str) -> None:
    model, loss = net(), F.cross_entropy
    if what == "'1'":
        model[1] = torch.compile(model[1])
    state = State(
        model=torch.compile(model) if what == "the model" else model,  # type: ignore[arg-type]
        loss_fn=torch.compile(loss) if what == "'loss_fn'" else loss,
        algorithms=[GradientPenalty()],
        batch=data(),
    )
    with Engine(state, Logger()) as engine, pytest.raises(EngineError, match=f"torch.compile has wrapped: {what}"):
        engine.run_event("after_dataloader")
