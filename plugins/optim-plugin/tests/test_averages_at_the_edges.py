"""EMA and SWA where a loop, a model or a saved state is not what they were made for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from parts import trainer
from torch import nn

from engine_core import Engine, Event, Logger, State
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.errors import ArgumentError, CheckpointWarning
from engine_core.time import Timestamp
from optim_plugin import EMA, SAM, SWA, ema_update, held_buffers, start_average, swa_update, use_average


def fire(algorithm: Any, model: nn.Module | None, *events: Event) -> None:
    with Engine(State(model=model, algorithms=[algorithm]), Logger()) as engine:
        for event in events:
            engine.run_event(event)


def test_an_evaluation_that_never_ended_does_not_cost_the_trained_weights() -> None:
    """In a custom loop that unwinds nothing: the next EVAL_START finds the average in the model."""
    model, ema = nn.Linear(1, 1), EMA(decay=0.5)
    with Engine(State(model=model, algorithms=[ema]), Logger()) as engine:
        engine.run_event(Event.BATCH_END)
        nn.init.constant_(model.weight, 7.0)
        for event in (Event.EVAL_START, Event.EVAL_START, Event.EVAL_END):
            engine.run_event(event)
    assert model.weight.item() == 7.0


def test_a_loop_without_a_clock_updates_after_each_batch() -> None:
    model, ema = nn.Linear(1, 1), EMA(decay=0.5, warmup=False)
    nn.init.zeros_(model.weight)
    with Engine(State(model=model, algorithms=[ema]), Logger()) as engine:
        engine.run_event(Event.BATCH_END)
        nn.init.ones_(model.weight)
        for _ in range(3):
            engine.run_event(Event.BATCH_END)
    assert ema.averaged_state_dict()["weight"].item() == 0.875


class Expanded(nn.Linear):
    """Has a buffer of which three elements are one in memory."""

    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__(3, 3)
        self.register_buffer("scale", torch.ones(1).expand(3))


def test_expanded_buffers_are_averaged_and_come_back_as_the_same_object() -> None:
    model = Expanded()
    own, average = model.scale, start_average(model)
    model.scale = torch.tensor([5.0]).expand(3)
    ema_update(average, model, decay=0.75, buffers="average")
    model.scale = own
    with use_average(model, average):
        assert model.scale.tolist() == [2.0, 2.0, 2.0]
    assert model.scale is own and own.tolist() == [1.0, 1.0, 1.0]


def test_an_expanded_frozen_parameter_is_averaged_and_comes_back_as_it_was() -> None:
    model = nn.Module()
    model.scale = nn.Parameter(torch.ones(1).expand(3), requires_grad=False)
    own, at = model.scale, model.scale.data_ptr()
    with use_average(model, {"scale": torch.tensor([1.0, 2.0, 3.0])}):
        assert model.scale is own and own.tolist() == [1.0, 2.0, 3.0]
    assert model.scale is own and own.tolist() == [1.0, 1.0, 1.0] and own.stride() == (0,) and own.data_ptr() == at


class Sparse(nn.Linear):
    """Has a buffer that is not a dense tensor, such as a graph's neighbours."""

    near: torch.Tensor

    def __init__(self, layout: torch.layout = torch.sparse_coo) -> None:
        super().__init__(3, 3)
        self.register_buffer("near", torch.eye(3).to_sparse(layout=layout))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(torch.sparse.mm(self.near, x.T).T)


def test_a_sparse_buffer_is_copied_and_comes_back_as_the_same_object() -> None:
    model = Sparse()
    own, average = model.near, start_average(model)
    model.near = (2 * torch.ones(3, 3)).to_sparse()
    ema_update(average, model, decay=0.5)
    model.near = own
    with use_average(model, average):
        assert model.near.to_dense().unique().tolist() == [2.0]
    assert model.near is own and torch.equal(own.to_dense(), torch.eye(3))


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta:UserWarning")
@pytest.mark.parametrize(
    ("make", "layout"),
    [(lambda: EMA(0.5), torch.sparse_coo), (lambda: SWA(start=0.5), torch.sparse_csr), (SAM, torch.sparse_csr)],
    ids=["ema", "swa", "sam"],
)
def test_a_model_with_a_sparse_buffer_and_expanded_tensors_trains(make: Any, layout: torch.layout) -> None:
    model, data = Sparse(layout), [(torch.ones(2, 3), torch.tensor([0, 1]))]
    model.scale = nn.Parameter(torch.ones(1).expand(3), requires_grad=False)
    model.register_buffer("expanded", torch.ones(1).expand(3))
    with trainer(data, model, algorithms=make(), eval_dataloader=data, max_duration="2ep") as run:
        run.fit()
    assert torch.equal(model.near.to_dense(), torch.eye(3)) and model.scale.stride() == model.expanded.stride() == (0,)


def test_a_sparse_parameter_is_refused_by_name() -> None:
    model = nn.Module()
    model.graph = nn.Parameter(torch.eye(3).to_sparse())
    with pytest.raises(ArgumentError, match=r"'graph' is a parameter of layout torch\.sparse_coo, .*: make it dense"):
        start_average(model)


def test_a_lazy_model_is_refused_until_it_has_run() -> None:
    model = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d())
    for refused in (start_average, lambda m: held_buffers(m).__enter__()):
        with pytest.raises(ArgumentError, match="is lazy: it has no shape yet; run the model once first"):
            refused(model)
    model(torch.ones(2, 4))
    assert start_average(model)["0.weight"].shape == (3, 4)


class Peak(nn.Module):
    peak: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("peak", torch.ones(()))


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_a_buffer_that_is_infinite_once_leaves_no_trace(value: float) -> None:
    """In the algorithm as in the function: the average continues from the buffer's next value."""
    model, ema = Peak(), EMA(decay=0.5, warmup=False, buffers="average")
    average = start_average(model)
    with Engine(State(model=model, algorithms=[ema]), Logger()) as engine:
        engine.run_event(Event.BATCH_END)
        for peak in (value, 4.0, 8.0):
            model.peak.fill_(peak)
            engine.run_event(Event.BATCH_END)
            ema_update(average, model, decay=0.5, buffers="average")
    assert ema.averaged_state_dict()["peak"].item() == average["peak"].item() == 6.0


@pytest.mark.parametrize(
    ("algorithm", "state", "message"),
    [
        (EMA, {"a": 1}, "the state of ema has no 'average', but 'a': give what its"),
        (EMA, {"average": {}, "decay": 1}, "the state of ema has an unknown key 'decay': give what its"),
        (EMA, {"average": {}, "count": 0}, "count=0 has to be within"),
        (EMA, {"average": 3}, "an average is tensors by name, not int"),
        (EMA, {"average": {"weight": 1.0}}, "the average of 'weight' is not a tensor but float"),
        (SWA, {"average": {}}, "the state of swa has no 'count', but 'average'"),
    ],
)
def test_a_state_that_cannot_have_been_saved_is_refused_at_once(
    algorithm: Callable[[], Any], state: dict[str, Any], message: str
) -> None:
    made = algorithm()
    with pytest.raises((ValueError, TypeError), match=message):
        made.load_state_dict(state)
    assert made.state_dict() == {}


def test_a_saved_average_of_another_model_is_refused_in_the_run() -> None:
    ema = EMA()
    ema.load_state_dict({"average": {"weight": torch.zeros(1)}})
    with pytest.raises(ArgumentError, match="not an average of this model's weights"):
        fire(ema, nn.Linear(2, 2), Event.FIT_START)


def test_anything_but_an_average_is_refused() -> None:
    model: Any = nn.Linear(2, 2)
    with pytest.raises(TypeError, match="an average is tensors by name, not Linear: start_average makes one"):
        ema_update(model, model)
    with pytest.raises(TypeError, match="the average of 'bias' is not a tensor but int"):
        swa_update({**start_average(model), "bias": 1}, model, 1)  # type: ignore[dict-item]


def test_a_run_without_a_model_is_refused() -> None:
    with pytest.raises(ArgumentError, match="give State the model"):
        fire(EMA(), None, Event.BATCH_END)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_a_scripted_model_is_averaged_as_any_other() -> None:
    plain = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    scripted: nn.Module = torch.jit.script(plain)
    average = start_average(scripted)
    with torch.no_grad():
        plain[0].weight += 1
    ema_update(average, scripted, decay=0.5)
    assert torch.allclose(average["0.weight"], plain[0].weight - 0.5)


@pytest.mark.parametrize(
    ("algorithm", "saved", "ends", "averages"),
    [
        (EMA(0.5, "3ba"), {}, [5, 6, 7], [2.0, 5.0, 5.0]),
        (SWA(0.0, "3ba"), {"count": 2}, [5, 6, 9], [2.0, 4.0, 5.0]),
    ],
    ids=["ema", "swa"],
)
def test_a_loaded_average_moves_on_where_the_saved_one_would_have(
    algorithm: Any, saved: dict[str, Any], ends: list[int], averages: list[float]
) -> None:
    """Saved after batch 4; the weights are 8."""
    model, seen = nn.Linear(1, 1, bias=False), []
    nn.init.constant_(model.weight, 8.0)
    state = State(model=model, algorithms=[algorithm], max_duration="9ba", timestamp=Timestamp(batch=4))
    algorithm.load_state_dict({"average": {"weight": torch.full((1, 1), 2.0)}, **saved})
    with Engine(state, Logger()) as engine:
        engine.run_event(Event.FIT_START)
        for batch in ends:
            state.timestamp = Timestamp(batch=batch)
            engine.run_event(Event.BATCH_END)
            seen.append(algorithm.averaged_state_dict()["weight"].item())
    assert seen == averages


def test_resumed_leniently_with_other_weights_the_average_is_dropped_named_and_starts_again(tmp_path: Path) -> None:
    def make(outputs: int, **settings: Any) -> Any:
        given = {"algorithms": EMA(), "callbacks": CheckpointSaver(tmp_path), "max_duration": "4ep", **settings}
        return trainer(model=nn.Linear(4, outputs), **given)

    with make(3) as run:
        run.fit("2ep")
    with pytest.warns(CheckpointWarning, match="the states of optimizers, schedulers, EMA were not loaded either"):
        run = make(5, autoresume=True, load_strict=False)
    with run:
        run.fit()
    assert run.state.algorithms[0].averaged_state_dict()["weight"].shape == (5, 4)
