"""The averages themselves, without an engine; EMA and SWA where a loop, model or saved state is unusual."""

import copy

import pytest
import torch
from parts import trainer
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from engine_core import Engine, Event, Logger, State
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.errors import ArgumentError, CheckpointWarning
from engine_core.time import Timestamp
from optim_plugin import EMA, SAM, SWA, ema_update, held_buffers, start_average, swa_update, use_average
from optim_plugin.averages import Average


def randomize(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()


def test_the_average_is_that_of_torch_with_buffers():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    theirs = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.8), use_buffers=True)
    theirs.update_parameters(model)
    average = start_average(model)
    for _ in range(5):
        randomize(model)
        model(torch.randn(8, 4))
        theirs.update_parameters(model)
        ema_update(average, model, decay=0.8)
    expected = theirs.module.state_dict()
    assert average.keys() == expected.keys()
    assert all(torch.equal(average[n], expected[n]) for n in expected if expected[n].is_floating_point())
    assert average["1.num_batches_tracked"].item() == model[1].num_batches_tracked.item() == 5


def test_small_steps_are_not_lost_in_half_precision():
    """0.001 of the way from 1 to 2, 100 times: in 16 bits each step would be rounded away."""
    model = nn.Linear(1, 1, bias=False).bfloat16()
    nn.init.ones_(model.weight)
    average = start_average(model)
    nn.init.constant_(model.weight, 2.0)
    for _ in range(100):
        ema_update(average, model, decay=0.999)
    assert average["weight"].dtype is torch.float32
    assert average["weight"].item() == pytest.approx(2 - 0.999**100, rel=1e-5)
    with use_average(model, average):
        assert model.weight.item() == average["weight"].bfloat16().item()


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(5, 3)
        self.out = nn.Linear(3, 5, bias=False)
        self.out.weight = self.words.weight


@pytest.mark.parametrize("move_on", [lambda a, m: ema_update(a, m, decay=0.5), lambda a, m: swa_update(a, m, 1)])
def test_tied_parameters_are_averaged_once_and_under_both_names_in_a_copy_that_has_lost_the_ties(move_on):
    model = Tied()
    average = start_average(model)
    assert average["words.weight"] is average["out.weight"]
    nn.init.ones_(average["words.weight"])
    nn.init.zeros_(model.words.weight)
    for tied_or_not in (average, {name: torch.ones_like(tensor) for name, tensor in average.items()}):
        move_on(tied_or_not, model)
        assert [tensor.unique().tolist() for tensor in tied_or_not.values()] == [[0.5], [0.5]]


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.full((2, 2), -torch.inf).triu(1))
        self.register_buffer("lowest", torch.tensor([torch.inf, 1.0]))
        self.register_buffer("cache", torch.ones(2), persistent=False)


def test_masks_of_infinity_do_not_become_nan():
    """Minus infinity is copied; a minimum that starts as infinity is averaged once it is finite."""
    model = Masked()
    average = start_average(model)
    for value in (4.0, 8.0):
        model.lowest = torch.full((2,), value)
        ema_update(average, model, decay=0.5, buffers="average")
    assert average["mask"].tolist() == [[0.0, -torch.inf], [0.0, 0.0]]
    assert average["lowest"].tolist() == [6.0, 5.25]


def test_buffers_that_are_not_persistent_are_not_weights():
    assert list(start_average(Masked())) == ["mask", "lowest"]


def test_names_are_those_of_the_model_without_its_wrappers():
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 1)))
    names = list(start_average(model))
    compiled = torch.compile(nn.DataParallel(model), backend="eager")
    assert list(start_average(compiled)) == names == list(model.state_dict())
    model[1] = torch.compile(model[1], backend="eager")
    assert list(start_average(model)) == names


def test_a_graph_that_was_built_before_still_gives_its_gradients():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    loss = model(torch.ones(1, 3)).sum()
    expected = torch.autograd.grad(loss, model[0].weight, retain_graph=True)[0]
    with use_average(model, {name: torch.zeros_like(t) for name, t in model.state_dict().items()}):
        pass
    assert torch.equal(torch.autograd.grad(loss, model[0].weight)[0], expected)


def test_an_average_of_another_model_and_what_is_none_are_refused():
    model, average = nn.Linear(2, 2), start_average(nn.Linear(3, 2))
    with pytest.raises(ValueError, match=r"'weight' has the shape \(2, 2\) in the model and \(2, 3\) in the average"):
        ema_update(average, model)
    with pytest.raises(ValueError, match="the average lacks 'bias'"):
        ema_update({"weight": torch.zeros(2, 2)}, model)
    with pytest.raises(ValueError, match="the model has no 'other'"):
        ema_update({**start_average(model), "other": torch.zeros(1)}, model)
    with pytest.raises(TypeError, match="an average is tensors by name, not Linear: start_average makes one"):
        ema_update(model, model)
    with pytest.raises(TypeError, match="the average of 'bias' is not a tensor but int"):
        swa_update({**start_average(model), "bias": 1}, model, 1)


def test_a_decay_that_is_not_a_share_and_a_mean_of_no_weights_are_refused():
    model = nn.Linear(1, 1)
    for decay in (-0.1, 1, float("nan")):
        with pytest.raises(ValueError, match="decay="):
            ema_update(start_average(model), model, decay)
    with pytest.raises(ValueError, match="count=0 has to be within"):
        swa_update(start_average(model), model, count=0)


def fire(algorithm, model, *events):
    with Engine(State(model=model, algorithms=[algorithm]), Logger()) as engine:
        for event in events:
            engine.run_event(event)


def test_an_evaluation_that_never_ended_does_not_cost_the_trained_weights():
    """In a custom loop that unwinds nothing: the next EVAL_START finds the average in the model."""
    model, ema = nn.Linear(1, 1), EMA(decay=0.5)
    with Engine(State(model=model, algorithms=[ema]), Logger()) as engine:
        engine.run_event(Event.BATCH_END)
        nn.init.constant_(model.weight, 7.0)
        for event in (Event.EVAL_START, Event.EVAL_START, Event.EVAL_END):
            engine.run_event(event)
    assert model.weight.item() == 7.0


def test_a_loop_without_a_clock_updates_after_each_batch():
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

    def __init__(self):
        super().__init__(3, 3)
        self.register_buffer("scale", torch.ones(1).expand(3))


def test_expanded_buffers_are_averaged_and_come_back_as_the_same_object():
    model = Expanded()
    own, average = model.scale, start_average(model)
    model.scale = torch.tensor([5.0]).expand(3)
    ema_update(average, model, decay=0.75, buffers="average")
    model.scale = own
    with use_average(model, average):
        assert model.scale.tolist() == [2.0, 2.0, 2.0]
    assert model.scale is own and own.tolist() == [1.0, 1.0, 1.0]


def test_an_expanded_frozen_parameter_is_averaged_and_comes_back_as_it_was():
    model = nn.Module()
    model.scale = nn.Parameter(torch.ones(1).expand(3), requires_grad=False)
    own, at = model.scale, model.scale.data_ptr()
    with use_average(model, {"scale": torch.tensor([1.0, 2.0, 3.0])}):
        assert model.scale is own and own.tolist() == [1.0, 2.0, 3.0]
    assert model.scale is own and own.tolist() == [1.0, 1.0, 1.0] and own.stride() == (0,) and own.data_ptr() == at


class Sparse(nn.Linear):
    """Has a buffer that is not a dense tensor, such as a graph's neighbours."""

    def __init__(self, layout=torch.sparse_coo):
        super().__init__(3, 3)
        self.register_buffer("near", torch.eye(3).to_sparse(layout=layout))

    def forward(self, x):
        return super().forward(torch.sparse.mm(self.near, x.T).T)


def test_a_sparse_buffer_is_copied_and_comes_back_as_the_same_object():
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
def test_a_model_with_a_sparse_buffer_and_expanded_tensors_trains(make, layout):
    model, data = Sparse(layout), [(torch.ones(2, 3), torch.tensor([0, 1]))]
    model.scale = nn.Parameter(torch.ones(1).expand(3), requires_grad=False)
    model.register_buffer("expanded", torch.ones(1).expand(3))
    with trainer(data, model, algorithms=make(), eval_dataloader=data, max_duration="2ep") as run:
        run.fit()
    assert torch.equal(model.near.to_dense(), torch.eye(3)) and model.scale.stride() == model.expanded.stride() == (0,)


def test_a_sparse_parameter_is_refused_by_name():
    model = nn.Module()
    model.graph = nn.Parameter(torch.eye(3).to_sparse())
    with pytest.raises(ArgumentError, match=r"'graph' is a parameter of layout torch\.sparse_coo, .*: make it dense"):
        start_average(model)


def test_a_lazy_model_is_refused_until_it_has_run():
    model = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d())
    for refused in (start_average, lambda m: held_buffers(m).__enter__()):
        with pytest.raises(ArgumentError, match="is lazy: it has no shape yet; run the model once first"):
            refused(model)
    model(torch.ones(2, 4))
    assert start_average(model)["0.weight"].shape == (3, 4)


class Peak(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("peak", torch.ones(()))


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_a_buffer_that_is_infinite_once_leaves_no_trace(value):
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
def test_a_state_that_cannot_have_been_saved_is_refused_at_once(algorithm, state, message):
    made = algorithm()
    with pytest.raises((ValueError, TypeError), match=message):
        made.load_state_dict(state)
    assert made.state_dict() == {}


def test_a_run_without_a_model_and_a_saved_average_of_another_are_refused_in_the_run():
    with pytest.raises(ArgumentError, match="give State the model"):
        fire(EMA(), None, Event.BATCH_END)
    ema = EMA()
    ema.load_state_dict({"average": {"weight": torch.zeros(1)}})
    with pytest.raises(ArgumentError, match="not an average of this model's weights"):
        fire(ema, nn.Linear(2, 2), Event.FIT_START)


@pytest.mark.parametrize(
    ("algorithm", "saved", "ends", "averages"),
    [(EMA(0.5, "3ba"), {}, [5, 6, 7], [2.0, 5.0, 5.0]), (SWA(0.0, "3ba"), {"count": 2}, [5, 6, 9], [2.0, 4.0, 5.0])],
    ids=["ema", "swa"],
)
def test_a_loaded_average_moves_on_where_the_saved_one_would_have(algorithm, saved, ends, averages):
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


def test_resumed_leniently_with_other_weights_the_average_is_dropped_named_and_starts_again(tmp_path):
    def make(outputs, **settings):
        given = {"algorithms": EMA(), "callbacks": CheckpointSaver(tmp_path), "max_duration": "4ep", **settings}
        return trainer(model=nn.Linear(4, outputs), **given)

    with make(3) as run:
        run.fit("2ep")
    with pytest.warns(CheckpointWarning, match="the states of optimizers, schedulers, EMA were not loaded either"):
        run = make(5, autoresume=True, load_strict=False)
    with run:
        run.fit()
    assert run.state.algorithms[0].averaged_state_dict()["weight"].shape == (5, 4)


on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


@on_cuda
def test_averages_follow_weights_that_move():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    average = Average(model)
    model.to("cuda")
    nn.init.ones_(model[0].weight)
    average.update(get_ema_multi_avg_fn(0.5))
    assert {tensor.device.type for tensor in average.copies().values()} == {"cuda"}


@on_cuda
def test_the_functional_form_refuses_an_average_elsewhere():
    model = nn.Linear(1, 1)
    average = start_average(model)
    with pytest.raises(ValueError, match="is on cpu, the weight on cuda"):
        ema_update(average, model.to("cuda"))


@on_cuda
def test_flattened_recurrent_weights_stay_flat():
    """A warning of weights in pieces would be an error here."""
    model = nn.LSTM(4, 4, num_layers=2).to("cuda")
    average = {name: torch.zeros_like(tensor) for name, tensor in start_average(model).items()}
    before, x = copy.deepcopy(model.state_dict()), torch.randn(3, 2, 4, device="cuda")
    expected = model(x)[0]
    with use_average(model, average):
        assert not model(x)[0].any()
    assert torch.equal(model(x)[0], expected)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
