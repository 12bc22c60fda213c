"""SAM comes first at AFTER_TRAIN_BATCH, whatever else is there."""

from typing import Any

import pytest
import torch
from optim_parts import make_trainer
from torch import nn

from engine_core import Algorithm, AlgorithmMetadata, Callback, Event, Logger, State
from engine_core.errors import EngineError
from optim_plugin import SAM
from optim_plugin.passes import sort_sam_first


def make_data() -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.ones(4, 3), torch.tensor([0, 1, 0, 1]))]


class Scale(Algorithm):
    """Has another batch from the start of the step to its end, and no tag that says so."""

    metadata = AlgorithmMetadata(events=("before_train_batch", "after_train_batch"), writes=("batch",))

    def match(self, event: Event, state: State) -> bool:
        return True

    def apply(self, event: Event, state: State, logger: Logger) -> None:
        state.batch_set_item(0, state.batch_get_item(0) * (2.0 if event is Event.BEFORE_TRAIN_BATCH else 0.5))


class HalveGradients(Algorithm):
    """Edits the gradients that the optimizer is about to step with."""

    metadata = AlgorithmMetadata(events=("after_train_batch",), writes=("model",))

    def match(self, event: Event, state: State) -> bool:
        return True

    def apply(self, event: Event, state: Any, logger: Logger) -> None:
        for parameter in state.model.parameters():
            parameter.grad *= 0.5


class Look(Callback):
    """Keeps the inputs of each forward pass, and the gradients of the last backward pass and of the step."""

    def __init__(self) -> None:
        self.inputs: list[torch.Tensor] = []
        self.computed = self.used = torch.zeros(())

    def before_forward(self, state: State, logger: Logger) -> None:
        self.inputs.append(state.batch_get_item(0))

    def after_backward(self, state: Any, logger: Logger) -> None:
        self.computed = state.model.weight.grad.clone()

    def batch_end(self, state: Any, logger: Logger) -> None:
        self.used = state.model.weight.grad.clone()


def look_at(algorithms: list[Algorithm]) -> Look:
    look = Look()
    data = [(torch.ones(4, 3), torch.tensor([0, 1, 0, 1]))]
    with make_trainer(algorithms, look, model=nn.Linear(3, 2), data=data, max_duration="1ba") as trainer:
        trainer.fit()
    return look


@pytest.mark.parametrize("place", [0, 1])
def test_the_second_pass_sees_what_others_undo_at_its_event(place: int) -> None:
    algorithms: list[Algorithm] = [Scale()]
    algorithms.insert(place, SAM())
    assert [inputs.unique().tolist() for inputs in look_at(algorithms).inputs] == [[2.0], [2.0]]


@pytest.mark.parametrize("place", [0, 1])
def test_an_algorithm_that_edits_gradients_edits_those_of_the_second_pass(place: int) -> None:
    algorithms: list[Algorithm] = [HalveGradients()]
    algorithms.insert(place, SAM())
    look = look_at(algorithms)
    assert len(look.inputs) == 2
    assert look.computed.any() and torch.equal(look.used, 0.5 * look.computed)


def test_two_in_one_run_are_refused_with_both_names() -> None:
    """The second would go up the slope that the first has left, with three passes a step."""
    with pytest.raises(EngineError, match=r"can't run together .*conflicts='@sharpness'") as caught:
        look_at([SAM(), SAM(rho=0.1)])
    assert all(name in str(caught.value) for name in ("sam", "SAM-2"))


def test_the_pass_moves_it_to_the_front_and_keeps_the_others() -> None:
    a, b, sam = Scale(), HalveGradients(), SAM()
    assert sort_sam_first([a, b, sam], Event.AFTER_TRAIN_BATCH) == [sam, a, b]
    assert sort_sam_first.metadata.events == (Event.AFTER_TRAIN_BATCH,)
