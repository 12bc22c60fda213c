"""GradientPenalty in a run: what the loss and the batch are when, with microbatches and others, and what it refuses."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from engine_core import Algorithm, AlgorithmMetadata, Callback, Event, Logger, State, Trainer
from engine_core.errors import EngineError
from optim_plugin import GradientPenalty

Batch = tuple[torch.Tensor, torch.Tensor]


def make_data(batches: int = 3, rows: int = 7) -> list[Batch]:
    generator = torch.Generator().manual_seed(5)
    return [
        (torch.randn(rows, 4, generator=generator).double(), torch.randint(0, 3, (rows,), generator=generator))
        for _ in range(batches)
    ]


def make_net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def train(model: nn.Module, algorithms: Any, data: Any = None, **settings: Any) -> Trainer:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    given = {"max_duration": "2ep", "loss_fn": F.cross_entropy, "optimizers": optimizer, "seed": 1, **settings}
    data = make_data() if data is None else data
    with Trainer(model, data, algorithms=algorithms, device="cpu", progress_bar=False, **given) as trainer:
        trainer.fit()
    return trainer


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


class Look(Callback):
    """Makes a call at some events."""

    def __init__(self, **calls: Callable[[State], Any]) -> None:
        for event, call in calls.items():
            setattr(self, event, lambda state, logger, call=call: call(state))


def test_weight_0_is_the_plain_run() -> None:
    models = [make_net(), make_net()]
    for model, algorithms in zip(models, (GradientPenalty(weight=0), ()), strict=True):
        train(model, algorithms)
    assert all(torch.equal(p, q) for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True))


def test_the_model_gets_an_alias_and_the_batch_comes_back() -> None:
    data, seen = make_data(1), []
    look = Look(
        batch_start=lambda state: seen.append(state.batch),
        before_forward=lambda state: seen.append(state.batch[0]),
        after_loss=lambda state: seen.append(state.batch),
    )
    train(make_net(), GradientPenalty(), data, callbacks=look, max_duration="1ba")
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


def test_bf16_autocast_works() -> None:
    model = make_net().float()
    data = [(x.float(), y) for x, y in make_data()]
    train(model, GradientPenalty(weight=1.0), data, precision="amp_bf16")
    assert all(bool(p.isfinite().all()) for p in model.parameters())


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


class SquareOnce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return 2 * ctx.saved_tensors[0] * gradient  # type: ignore[no-any-return]


ONLY_ONCE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "own function": SquareOnce.apply,
    "cdist": lambda x: torch.cdist(x, x.detach()[:3] + 1),
}


@pytest.mark.parametrize("kind", ONLY_ONCE)
def test_operations_without_a_second_derivative_raise_what_the_readme_quotes(kind: str) -> None:
    class Once(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(ONLY_ONCE[kind](x)[:, :3])

    with pytest.raises(RuntimeError, match=r"differentiate twice|derivative for .* is not implemented"):
        train(Once(3, 3).double(), GradientPenalty())


def test_an_exception_that_is_handled_around_a_run_is_not_its_own() -> None:
    """A step is the same within an `except` block: it acts at its three events."""
    acted: list[Event] = []

    class Counted(GradientPenalty):
        def apply(self, event: Event, state: State, logger: Logger) -> None:
            acted.append(event)
            super().apply(event, state, logger)

    try:
        {}["missing"]
    except KeyError:
        train(make_net(), Counted(), max_duration="1ba")
    assert acted == [Event.BEFORE_FORWARD, Event.AFTER_FORWARD, Event.BEFORE_BACKWARD]


def test_the_engine_is_asked_for_no_graph_of_the_last_backward() -> None:
    assert GradientPenalty().backwards_create_graph is False


@pytest.mark.parametrize("weight", [-1, float("nan"), "1"])
def test_impossible_weights_are_refused(weight: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="weight="):
        GradientPenalty(weight=weight)
