"""GradientPenalty in a run: what the loss and the batch are when, with microbatches and others, and what it refuses."""

from typing import Any

import pytest
import torch
from optim_parts import make_trainer
from parts import at, batches
from torch import nn

from engine_core import Algorithm, AlgorithmMetadata, Event, Logger, State
from engine_core.errors import EngineError
from optim_plugin import GradientPenalty


def make_data() -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(x.double(), y) for x, y in batches(7, 7, 7)]


def make_net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def train(model: nn.Module, algorithms: Any, data: Any = None, **settings: Any) -> None:
    with make_trainer(algorithms, model=model, data=data or make_data(), **settings) as trainer:
        trainer.fit()


def close(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.allclose(p, q, rtol=0, atol=1e-12) for p, q in pairs)


class Double(Algorithm):
    """An augmentation of what the model gets."""

    metadata = AlgorithmMetadata(events=("before_forward", "after_forward"), tags=("augmentation",), writes=("batch",))
    kept: Any = None

    def match(self, event: Event, state: State) -> bool:
        return True

    def apply(self, event: Event, state: State, logger: Logger) -> None:
        if event is Event.BEFORE_FORWARD:
            self.kept = state.batch
            state.batch_set_item(0, state.batch_get_item(0) * 2)
        else:
            state.batch, self.kept = self.kept, None


def test_weight_0_is_the_plain_run() -> None:
    models = [make_net(), make_net()]
    for model, algorithms in zip(models, (GradientPenalty(weight=0), ()), strict=True):
        train(model, algorithms)
    assert all(torch.equal(p, q) for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True))


def test_the_model_gets_an_alias_and_the_batch_comes_back() -> None:
    data, seen = make_data()[:1], []
    look = [
        at("batch_start", lambda state: seen.append(state.batch)),
        at("before_forward", lambda state: seen.append(state.batch[0])),
        at("after_loss", lambda state: seen.append(state.batch)),
    ]
    with make_trainer(GradientPenalty(), *look, model=make_net(), data=data, max_duration="1ba") as trainer:
        trainer.fit()
    before, inputs, after = seen
    assert before is after is data[0] and not data[0][0].requires_grad and data[0][0].grad is None
    assert inputs.requires_grad and inputs.data_ptr() == data[0][0].data_ptr()


@pytest.mark.parametrize("first", [True, False])
def test_it_takes_the_gradient_by_what_an_augmentation_made(first: bool) -> None:
    algorithms: list[Algorithm] = [Double(), GradientPenalty(weight=1.0)]
    ours, doubled = make_net(), make_net()
    train(ours, algorithms if first else algorithms[::-1])
    train(doubled, GradientPenalty(weight=1.0), [(x * 2, y) for x, y in make_data()])
    assert close(ours, doubled)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (torch.zeros(4, 3, dtype=torch.long), r"item 0 of the batch is a tensor of torch\.int64"),
        ("text", "item 0 of the batch has to be a tensor, not str"),
        (torch.zeros(()), "item 0 of the batch has no rows"),
    ],
)
def test_inputs_without_a_gradient_are_refused_at_the_first_batch(inputs: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        GradientPenalty().validate(State(batch=(inputs, torch.zeros(4))))
    GradientPenalty(weight=0).validate(State(batch=(inputs, torch.zeros(4))))


def test_a_scaler_is_refused() -> None:
    with pytest.raises(EngineError, match="'amp_fp16'"):
        GradientPenalty().validate(State(batch=make_data()[0], precision="amp_fp16"))


def test_a_model_that_ignores_its_inputs_is_refused_by_name() -> None:
    class Deaf(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.detach())

    with pytest.raises(ValueError, match="does not depend") as error:
        train(Deaf(4, 3).double(), GradientPenalty())
    assert "GradientPenalty" in str(getattr(error.value, "__notes__", ""))


def test_operations_without_a_second_derivative_raise_what_the_readme_quotes() -> None:
    class Once(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(torch.cdist(x, x.detach()[:3] + 1))

    with pytest.raises(RuntimeError, match=r"derivative for .* is not implemented"):
        train(Once(3, 3).double(), GradientPenalty())


@pytest.mark.parametrize("weight", [-1, float("nan"), "1"])
def test_impossible_weights_are_refused(weight: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="weight="):
        GradientPenalty(weight=weight)
