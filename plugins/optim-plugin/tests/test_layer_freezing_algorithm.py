"""LayerFreezing in a run: the schedule literally, what stays, and what is refused."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from parts import Memory, batches, trainer
from torch import nn

from engine_core import Callback, Event, Logger, State, Trainer
from engine_core.errors import ArgumentError, EngineError
from engine_core.time import Timestamp
from optim_plugin import LayerFreezing


def make_net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)), nn.Linear(4, 3))


class Recorder(Callback):
    """Keeps the weights after each batch, and how many layers were frozen in it."""

    def __init__(self) -> None:
        self.weights: list[list[torch.Tensor]] = []
        self.frozen: list[int] = []

    def batch_end(self, state: Any, logger: Logger) -> None:
        self.weights.append([layer.weight.detach().clone() for layer in state.model])
        self.frozen.append(sum(not layer.weight.requires_grad for layer in state.model))


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)


def make_trainer(algorithms: Any, *callbacks: Any, model: Any = None, **settings: Any) -> Trainer:
    """Return one of 20 batches."""
    model = model or make_net()
    given = {"algorithms": algorithms, "callbacks": callbacks, "optimizers": make_optimizer(model), **settings}
    made: Trainer = trainer(batches(8, 8, 8, 8, 8), model, max_duration="4ep", seed=1, **given)
    return made


HALF = [0] * 12 + [1, 1, 2, 2, 3, 3, 4, 4]


@pytest.mark.parametrize(
    ("start", "level", "frozen"),
    [
        (0.5, 1.0, HALF),
        (0.0, 1.0, [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4 + [4] * 4),
        (0.5, 0.5, [0] * 14 + [1] * 4 + [2] * 2),
        (0.95, 1.0, [0] * 20),
    ],
)
def test_layers_are_frozen_by_the_schedule(start: float, level: float, frozen: list[int]) -> None:
    """Of 5 layers in 20 batches: floor(5 * level * (batch / 20 - start) / (1 - start)), the last never."""
    recorder = Recorder()
    with make_trainer(LayerFreezing(start, level), recorder) as run:
        run.fit()
    assert recorder.frozen == frozen


@pytest.mark.parametrize("names", [[], ["sam"], ["gradient_penalty"], ["sam", "gradient_penalty", "ema"]], ids=" ".join)
def test_frozen_weights_are_bit_equal_to_the_end_and_the_others_keep_training_beside_others_too(
    names: list[str],
) -> None:
    recorder = Recorder()
    with make_trainer([*names, LayerFreezing()], recorder, eval_dataloader=batches(8)) as run:
        run.fit()
    assert recorder.frozen == HALF
    for layer, at in enumerate([12, 14, 16, 18, 20]):
        moves = [not torch.equal(one[layer], other[layer]) for one, other in pairwise(recorder.weights)]
        assert moves == [True] * (at - 1) + [False] * (20 - at)
    assert all(step[4].isfinite().all() for step in recorder.weights)


def test_a_second_fit_unfreezes_nothing_and_each_change_is_logged_once() -> None:
    recorder, destination = Recorder(), Memory()
    with make_trainer(LayerFreezing(), recorder, loggers=[destination]) as run:
        run.fit()
        with pytest.warns(UserWarning, match="goes past the max_duration"):
            run.fit("4ep")
    assert recorder.frozen == HALF + [4] * 20
    assert destination.values("layer_freezing/frozen") == [(12, 1), (14, 2), (16, 3), (18, 4)]


def test_a_run_without_a_model_is_refused() -> None:
    state = State(max_duration="2ba", timestamp=Timestamp(batch=1))
    with pytest.raises(ArgumentError, match="give State the model"):
        LayerFreezing(start=0).apply(Event.BATCH_START, state, Logger())


def test_an_instance_in_a_second_run_begins_again() -> None:
    used, recorder = LayerFreezing(), Recorder()
    with make_trainer(used) as run:
        run.fit()
    with make_trainer(used, recorder) as run:
        run.fit("1ba")
        assert used.state_dict() == {}
        run.fit()
    assert recorder.frozen == HALF


def test_what_was_loaded_waits_for_a_batch_to_freeze_before() -> None:
    """A run that resumes at its last batch comes to a checkpoint first, where nothing has a gradient."""
    rest, destination = LayerFreezing(), Memory()
    with make_trainer(rest, loggers=[destination]) as after:
        rest.load_state_dict({"frozen": 4, "layers": [str(i) for i in range(5)]})
        after.state.timestamp = after.state.timestamp._replace(batch=20, epoch=4)
        after.engine.run_event("batch_checkpoint")
    assert destination.values("layer_freezing/frozen") == []
    assert rest.state_dict()["frozen"] == 4


def test_two_in_one_run_are_refused_with_both_names() -> None:
    with pytest.raises(EngineError, match=r"can't run together .*conflicts='@freezing'") as caught:
        make_trainer([LayerFreezing(), LayerFreezing(level=0.5)])
    assert all(name in str(caught.value) for name in ("layer_freezing", "LayerFreezing-2"))


def test_it_asks_for_parameters_without_a_gradient() -> None:
    assert LayerFreezing().find_unused_parameters
    assert not LayerFreezing().backwards_create_graph


def test_what_it_cannot_know_is_refused() -> None:
    model = make_net()
    with pytest.raises(ValueError, match="max_duration is not known"):
        LayerFreezing().validate(State(model=model))
    optimizers = [make_optimizer(layer) for layer in model]
    state = State(model=model, max_duration="1ep", optimizers=optimizers, precision="amp_fp16")
    with pytest.raises(ValueError, match="several optimizers under amp_fp16"):
        LayerFreezing().validate(state)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"frozen": 1}, "the state of layer_freezing has no 'layers'"),
        ({"frozen": "a", "layers": 3}, "layers=3 in the state of layer_freezing has to be a list"),
        ({"frozen": 1, "layers": [1]}, r"layers=\[1\] in the state"),
        ({"frozen": "a", "layers": ["0"]}, "frozen='a' .*whole number: .* in the state of layer_freezing"),
        ({"frozen": -1, "layers": ["0"]}, "frozen=-1"),
    ],
)
def test_a_state_that_cannot_have_been_saved_is_refused_and_nothing_taken(state: Any, message: str) -> None:
    algorithm = LayerFreezing()
    algorithm.load_state_dict({"frozen": 1, "layers": ["0", "1"]})
    with pytest.raises((ValueError, TypeError), match=message):
        algorithm.load_state_dict(state)
    assert algorithm.state_dict() == {"frozen": 1, "layers": ["0", "1"]}


@pytest.mark.parametrize("arguments", [{"start": 1}, {"start": -0.1}, {"level": 0}, {"level": 1.1}])
def test_arguments_that_are_not_fractions_are_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(arguments))}="):
        LayerFreezing(**arguments)
