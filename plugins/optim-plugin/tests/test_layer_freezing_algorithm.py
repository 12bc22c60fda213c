"""LayerFreezing in a run: the schedule literally, what stays, and what is refused."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from engine_core import Callback, Event, Logger, State, Trainer
from engine_core.errors import ArgumentError, EngineError
from engine_core.time import Timestamp
from engine_core_author import RecordingDestination
from optim_plugin import EMA, LayerFreezing


def make_data(batches: int = 5) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    return [
        (torch.randn(8, 4, generator=generator), torch.randint(0, 3, (8,), generator=generator)) for _ in range(batches)
    ]


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


def make_trainer(algorithms: Any, model: Any = None, **settings: Any) -> Trainer:
    model = make_net() if model is None else model
    given = {"max_duration": "4ep", "loss_fn": F.cross_entropy, "optimizers": make_optimizer(model), "device": "cpu"}
    return Trainer(model, make_data(), algorithms=algorithms, seed=1, **{**given, **settings})


@pytest.mark.parametrize(
    ("start", "level", "frozen"),
    [
        (0.5, 1.0, [0] * 12 + [1, 1, 2, 2, 3, 3, 4, 4]),
        (0.0, 1.0, [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4 + [4] * 4),
        (0.5, 0.5, [0] * 14 + [1] * 4 + [2] * 2),
        (0.95, 1.0, [0] * 20),
    ],
)
def test_layers_are_frozen_by_the_schedule(start: float, level: float, frozen: list[int]) -> None:
    """Of 5 layers in 20 batches: floor(5 * level * (batch / 20 - start) / (1 - start)), the last never."""
    recorder = Recorder()
    with make_trainer(LayerFreezing(start, level), callbacks=recorder) as trainer:
        trainer.fit()
    assert recorder.frozen == frozen


def test_frozen_weights_are_bit_equal_to_the_end_and_the_others_keep_training() -> None:
    recorder = Recorder()
    with make_trainer(LayerFreezing(), callbacks=recorder) as trainer:
        trainer.fit()
    for layer, at in enumerate([12, 14, 16, 18]):
        moves = [not torch.equal(one[layer], other[layer]) for one, other in pairwise(recorder.weights)]
        assert moves == [True] * (at - 1) + [False] * (20 - at)
    last = [weights[4] for weights in recorder.weights]
    assert not any(torch.equal(one, other) for one, other in pairwise(last))


def test_until_start_training_is_the_same_as_without_it() -> None:
    recorders = [Recorder(), Recorder()]
    for algorithms, recorder in zip(([LayerFreezing()], []), recorders, strict=True):
        with make_trainer(algorithms, callbacks=recorder) as trainer:
            trainer.fit()
    same = [all(map(torch.equal, one, other)) for one, other in zip(*(r.weights for r in recorders), strict=True)]
    assert same == [True] * 12 + [False] * 8


@pytest.mark.parametrize("at", [3, 13, 17])
def test_a_resumed_run_ends_as_the_uninterrupted_one(at: int) -> None:
    """The checkpoint's model has everything trainable again."""
    whole, first, rest = Recorder(), LayerFreezing(), LayerFreezing()
    with make_trainer(LayerFreezing(), callbacks=whole) as trainer:
        trainer.fit()
    with make_trainer(first) as before:
        before.fit(f"{at}ba")
    recorder = Recorder()
    with make_trainer(rest, callbacks=recorder) as after:
        model: Any = after.state.model
        model.load_state_dict(before.state.model.state_dict())
        after.state.optimizers[0].load_state_dict(before.state.optimizers[0].state_dict())
        rest.load_state_dict(first.state_dict())
        after.state.timestamp = before.state.timestamp
        after._session.batches = iter(make_data()[at % 5 :])
        after._session.feed.taken, after._session.feed.is_exhausted = at % 5, False
        after.fit()
    assert recorder.frozen == whole.frozen[at:]
    assert all(map(torch.equal, recorder.weights[-1], whole.weights[-1]))


def test_a_state_that_was_saved_is_frozen_at_the_first_batch() -> None:
    algorithm, recorder = LayerFreezing(), Recorder()
    algorithm.load_state_dict({"frozen": 2, "layers": ["0", "1", "2", "3", "4"]})
    with make_trainer(algorithm, callbacks=recorder) as trainer:
        trainer.fit("1ba")
    assert recorder.frozen == [2]


def test_a_second_fit_unfreezes_nothing() -> None:
    recorder = Recorder()
    with make_trainer(LayerFreezing(), callbacks=recorder) as trainer:
        trainer.fit()
        with pytest.warns(UserWarning, match="goes past the max_duration"):
            trainer.fit("4ep")
    assert recorder.frozen == [0] * 12 + [1, 1, 2, 2, 3, 3, 4, 4] + [4] * 20


def test_a_run_without_a_model_is_refused() -> None:
    state = State(max_duration="2ba", timestamp=Timestamp(batch=1))
    with pytest.raises(ArgumentError, match="give State the model"):
        LayerFreezing(start=0).apply(Event.BATCH_START, state, Logger())


def test_layers_that_the_user_froze_do_not_count() -> None:
    model, recorder = make_net(), Recorder()
    for layer in model[:3]:
        layer.requires_grad_(False)
    with make_trainer(LayerFreezing(start=0), model, callbacks=recorder) as trainer:
        trainer.fit()
    assert recorder.frozen == [3] * 10 + [4] * 10


def test_an_instance_in_a_second_run_begins_again() -> None:
    used, recorder = LayerFreezing(), Recorder()
    with make_trainer(used) as trainer:
        trainer.fit()
    with make_trainer(used, callbacks=recorder) as trainer:
        trainer.fit("1ba")
        assert used.state_dict() == {}
        trainer.fit()
    assert recorder.frozen == [0] * 12 + [1, 1, 2, 2, 3, 3, 4, 4]


def test_an_average_of_the_weights_is_updated_beside_it() -> None:
    recorder, ema = Recorder(), EMA(decay=0.5)
    with make_trainer([LayerFreezing(), ema], callbacks=recorder, eval_dataloader=make_data(1)) as trainer:
        trainer.fit()
    torch.testing.assert_close(ema.averaged_state_dict()["0.weight"], recorder.weights[-1][0], rtol=0.02, atol=1e-4)


@pytest.mark.parametrize(
    "names", [["sam"], ["gradient_penalty"], ["ema"], ["sam", "gradient_penalty", "ema"]], ids=" ".join
)
def test_beside_other_algorithms_frozen_weights_stay_and_the_others_keep_training(names: list[str]) -> None:
    recorder = Recorder()
    with make_trainer([*names, LayerFreezing()], callbacks=recorder, eval_dataloader=make_data(1)) as trainer:
        trainer.fit()
    weights = recorder.weights
    assert recorder.frozen == [0] * 12 + [1, 1, 2, 2, 3, 3, 4, 4]
    for layer, at in enumerate([12, 14, 16, 18]):
        assert all(torch.equal(step[layer], weights[at - 1][layer]) for step in weights[at:])
    assert not torch.equal(weights[-1][4], weights[-2][4])
    assert all(step[4].isfinite().all() for step in weights)


def logged_by(destination: RecordingDestination) -> list[tuple[int, int]]:
    key = "layer_freezing/frozen"
    return [(step, metrics[key]) for step, metrics in destination.metrics if key in metrics]


WHOLE = [(12, 1), (14, 2), (16, 3), (18, 4)]


def test_each_change_is_logged_once() -> None:
    destination = RecordingDestination()
    with make_trainer(LayerFreezing(), loggers=[destination]) as trainer:
        trainer.fit()
    assert logged_by(destination) == WHOLE


@pytest.mark.parametrize("at", [10, 11, 12, 13, 14, 17])
def test_a_resumed_run_logs_what_the_uninterrupted_one_does(at: int) -> None:
    first, rest, logged = LayerFreezing(), LayerFreezing(), [RecordingDestination(), RecordingDestination()]
    with make_trainer(first, loggers=[logged[0]]) as before:
        before.fit(f"{at}ba")
    with make_trainer(rest, loggers=[logged[1]]) as after:
        rest.load_state_dict(first.state_dict())
        after.state.timestamp = before.state.timestamp
        after._session.batches = iter(make_data()[at % 5 :])
        after._session.feed.taken, after._session.feed.is_exhausted = at % 5, False
        after.fit()
    assert logged_by(logged[0]) + logged_by(logged[1]) == WHOLE


def test_what_was_loaded_waits_for_a_batch_to_freeze_before() -> None:
    """A run that resumes at its last batch comes to a checkpoint first, where nothing has a gradient."""
    rest, destination = LayerFreezing(), RecordingDestination()
    with make_trainer(rest, loggers=[destination]) as after:
        rest.load_state_dict({"frozen": 4, "layers": [str(i) for i in range(5)]})
        after.state.timestamp = after.state.timestamp._replace(batch=20, epoch=4)
        after.engine.run_event("batch_checkpoint")
    assert logged_by(destination) == []
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
        ({"frozen": 1, "layers": "ab"}, "layers='ab' in the state"),
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
