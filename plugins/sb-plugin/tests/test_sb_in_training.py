"""SelectiveBackprop in whole trainings, by the Trainer and by name."""

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from engine_core import Algorithm, AlgorithmMetadata, Callback, Event, State, Trainer
from engine_core_author import RecordingDestination
from sb_plugin import SelectiveBackprop
from sb_plugin.passes import sort_selective_backprop_first

FULL = ("selective_backprop", {"start": 0.5, "end": 1, "scale_factor": 1, "interrupt": 0})
Weights = list[torch.Tensor]


class Recorder(Callback):
    """Takes the weights after each step, and the sizes of what was trained on."""

    def __init__(self) -> None:
        self.weights: list[Weights] = []
        self.sizes: list[int] = []

    def before_forward(self, state: State, logger: Any) -> None:
        self.sizes.append(len(state.batch[0]))

    def batch_end(self, state: State, logger: Any) -> None:
        self.weights.append([value.clone() for value in state.model.state_dict().values()])


def data() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(32, 2, 4, 4, generator=generator)
    return list(zip(x.split(8), (x.mean((1, 2, 3)) > 0).long().split(8), strict=True))


def train(algorithms: Any, **settings: Any) -> tuple[Recorder, Trainer]:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Dropout(0.2), nn.Linear(16, 2))
    recorder, optimizer = Recorder(), torch.optim.SGD(model.parameters(), lr=0.1)
    given = {"max_duration": "2ep", "loss_fn": F.cross_entropy, "optimizers": optimizer, "seed": 1, "device": "cpu"}
    with Trainer(model, data(), algorithms=algorithms, callbacks=recorder, **{**given, **settings}) as trainer:
        trainer.fit()
    return recorder, trainer


def same(one: Weights, other: Weights) -> bool:
    return all(map(torch.equal, one, other))


def test_runs_with_and_without_it_are_bit_identical_up_to_start() -> None:
    plain, _ = train([])
    pruned, _ = train([FULL])
    assert [same(a, b) for a, b in zip(plain.weights, pruned.weights, strict=True)] == [True] * 4 + [False] * 4


def test_one_instance_serves_a_second_trainer_as_it_served_the_first() -> None:
    algorithm = SelectiveBackprop(0, 1, scale_factor=1)
    first, _ = train([algorithm])
    second, _ = train([algorithm])
    assert all(map(same, first.weights, second.weights))


def test_selected_steps_train_on_the_kept_rows() -> None:
    recorder, _ = train([("selective_backprop", {"scale_factor": 1})], max_duration="10ba")
    assert recorder.sizes == [8, 8, 8, 8, 8, 8, 4, 8, 4, 8]


def test_a_selected_step_is_a_plain_step_on_the_rows_it_kept() -> None:
    """The oracle is a training on those rows, made of what the pruned run trained on."""

    rows: list[Any] = []

    class Kept(Callback):
        def before_forward(self, state: State, logger: Any) -> None:
            rows.append(state.batch)

    recorder = Recorder()
    settings = {"loss_fn": F.cross_entropy, "max_duration": "4ba", "seed": 1, "device": "cpu"}

    def model() -> nn.Module:
        torch.manual_seed(5)
        return nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2))

    def sgd(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)

    algorithm = SelectiveBackprop(0, 1, 0.25, 1, 0)
    with Trainer(
        model(), data(), algorithms=[algorithm], callbacks=[Kept(), recorder], optimizers=sgd, **settings
    ) as run:
        run.fit()
    oracle = Recorder()
    with Trainer(model(), rows, callbacks=[oracle], optimizers=sgd, **settings) as run:
        run.fit()
    assert oracle.sizes == [2, 2, 2, 2]
    assert all(map(same, recorder.weights, oracle.weights))


@pytest.mark.filterwarnings("ignore:BatchNorm")
def test_with_microbatches_a_pruned_batch_is_split_without_a_warning() -> None:
    """Other warnings are errors here: the reference warned that it can't split the tensor."""
    recorder, _ = train([FULL], microbatch_size=3)
    assert recorder.sizes == [3, 3, 2] * 4 + [2, 2] * 4


def test_only_selected_steps_are_logged() -> None:
    destination = RecordingDestination()
    train([FULL], loggers=[destination])
    logged = {step: metrics for step, metrics in destination.metrics if "selective_backprop/kept" in metrics}
    assert list(logged) == [4, 5, 6, 7]
    assert [metrics["selective_backprop/kept"] for metrics in logged.values()] == [4] * 4
    assert all(math.isfinite(value) for metrics in logged.values() for value in metrics.values())


class Other(Algorithm):
    metadata = AlgorithmMetadata(events=("after_dataloader",), writes=())

    def match(self, event: Event, state: State) -> bool:
        return True

    def apply(self, event: Event, state: State, logger: Any) -> None:
        self.size = len(state.batch[0])


class A(Other): ...


class B(Other): ...


class C(Other): ...


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_it_truly_runs_first_after_the_dataloader(place: int) -> None:
    """Whatever its place in the user's list; the reference ran it last. The others run in reverse."""
    algorithms: list[Any] = [A(), B(), C()]
    algorithms.insert(place, SelectiveBackprop(0, 1, scale_factor=1, interrupt=0))
    model = nn.Sequential(nn.Flatten(), nn.Linear(32, 2))
    with Trainer(model, data(), algorithms=algorithms, loss_fn=F.cross_entropy, device="cpu") as trainer:
        trainer.state.batch = data()[0]
        traces = trainer.engine.run_event(Event.AFTER_DATALOADER)
    assert list(traces) == [f"{name}/AFTER_DATALOADER" for name in ("SelectiveBackprop", "C", "B", "A")]
    assert [other.size for other in algorithms if isinstance(other, Other)] == [4, 4, 4]


def test_the_pass_moves_it_to_the_front_and_keeps_the_others() -> None:
    a, b, selective = A(), B(), SelectiveBackprop()
    assert sort_selective_backprop_first([a, selective, b], Event.AFTER_DATALOADER) == [selective, a, b]


def test_a_mistake_is_found_at_the_first_batch_not_at_start() -> None:
    """The default scale_factor needs images, and the default start is at half of the run."""
    recorder = Recorder()
    model = nn.Linear(3, 2)
    with (
        Trainer(
            model,
            [(torch.randn(8, 3), torch.zeros(8, dtype=torch.long))],
            max_duration="100ep",
            loss_fn=F.cross_entropy,
            optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
            algorithms=["selective_backprop"],
            callbacks=[recorder],
            device="cpu",
        ) as trainer,
        pytest.raises(ValueError, match="set scale_factor=1"),
    ):
        trainer.fit()
    assert recorder.weights == []
