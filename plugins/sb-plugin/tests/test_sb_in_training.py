"""SelectiveBackprop in whole trainings, by the Trainer and by name."""

import math
from typing import Any

import pytest
import torch
from parts import at, same, trainer
from torch import nn

from engine_core import Algorithm, AlgorithmMetadata, Event, State
from engine_core_author import RecordingDestination
from sb_plugin import SelectiveBackprop

FULL = ("selective_backprop", {"start": 0.5, "end": 1, "scale_factor": 1, "interrupt": 0})


def data() -> list[tuple[torch.Tensor, torch.Tensor]]:
    x = torch.randn(32, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    return list(zip(x.split(8), (x.mean((1, 2, 3)) > 0).long().split(8), strict=True))


def train(algorithms: Any, batches: Any = None, **settings: Any) -> tuple[list[Any], list[Any]]:
    """Return the batches that were trained on, and the weights after each step."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Dropout(0.2), nn.Linear(16, 2))
    seen: list[Any] = []
    weights: list[Any] = []
    watch = [
        at("before_forward", lambda state: seen.append(state.batch)),
        at("batch_end", lambda state: weights.append([each.clone() for each in state.model.state_dict().values()])),
    ]
    given = {"max_duration": "2ep", "algorithms": algorithms, "callbacks": watch, "seed": 1, **settings}
    with trainer(batches or data(), model, **given) as made:
        made.fit()
    return seen, weights


def sizes(batches: list[Any]) -> list[int]:
    return [len(batch[0]) for batch in batches]


def test_runs_with_and_without_it_are_bit_identical_up_to_start_and_only_selected_steps_are_logged() -> None:
    destination = RecordingDestination()
    _, plain = train([])
    _, pruned = train([FULL], loggers=destination)
    assert [same(a, b) for a, b in zip(plain, pruned, strict=True)] == [True] * 4 + [False] * 4
    logged = {step: metrics for step, metrics in destination.metrics if "selective_backprop/kept" in metrics}
    assert [(step, metrics["selective_backprop/kept"]) for step, metrics in logged.items()] == [
        (step, 4) for step in (4, 5, 6, 7)
    ]
    assert all(math.isfinite(value) for metrics in logged.values() for value in metrics.values())


def test_one_instance_serves_a_second_trainer_as_it_served_the_first() -> None:
    algorithm = SelectiveBackprop(0, 1, scale_factor=1)
    assert same(*(train([algorithm])[1] for _ in range(2)))


def test_a_selected_step_is_a_plain_step_on_the_rows_it_kept() -> None:
    """The oracle is a training on those rows, made of what the pruned run trained on."""
    kept, pruned = train([SelectiveBackprop(0, 1, 0.25, 1, 0)], max_duration="4ba")
    assert sizes(kept) == [2, 2, 2, 2]
    assert same(pruned, train([], kept, max_duration="4ba")[1])


@pytest.mark.filterwarnings("ignore:BatchNorm")
def test_with_microbatches_a_pruned_batch_is_split_without_a_warning() -> None:
    """Other warnings are errors here: the reference warned that it can't split the tensor."""
    seen, _ = train([FULL], microbatch_size=3)
    assert sizes(seen) == [3, 3, 2] * 4 + [2, 2] * 4


class Other(Algorithm):
    metadata = AlgorithmMetadata(events=("after_dataloader",), writes=())

    def match(self, event: Event, state: State) -> bool:
        return True

    def apply(self, event: Event, state: State, logger: Any) -> None:
        self.size = len(state.batch[0])


class A(Other): ...


class B(Other): ...


@pytest.mark.parametrize("place", [0, 1, 2])
def test_it_truly_runs_first_after_the_dataloader(place: int) -> None:
    """Whatever its place in the user's list; the reference ran it last. The others run in reverse."""
    algorithms: list[Any] = [A(), B()]
    algorithms.insert(place, SelectiveBackprop(0, 1, scale_factor=1, interrupt=0))
    model = nn.Sequential(nn.Flatten(), nn.Linear(32, 2))
    with trainer(data(), model, algorithms=algorithms) as made:
        made.state.batch = data()[0]
        traces = made.engine.run_event(Event.AFTER_DATALOADER)
    assert list(traces) == [f"{name}/AFTER_DATALOADER" for name in ("SelectiveBackprop", "B", "A")]
    assert [other.size for other in algorithms if isinstance(other, Other)] == [4, 4]
