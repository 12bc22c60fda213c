"""The averages themselves, without an engine: formulas in double precision, and which tensors are averaged."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from optim_plugin import ema_update, start_average, swa_update, use_average


def randomize(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()


def test_ema_is_the_closed_sum() -> None:
    """(1 - d) * sum of d^(k-1-i) w_i, i from 0 to k-1, and d^k w_start."""
    model, d, k = nn.Linear(3, 2).double(), 0.9, 25
    average, start, seen = start_average(model), model.weight.detach().clone(), []
    for _ in range(k):
        randomize(model)
        seen.append(model.weight.detach().clone())
        ema_update(average, model, decay=d)
    expected = d**k * start + (1 - d) * sum(d ** (k - 1 - i) * w for i, w in enumerate(seen))
    torch.testing.assert_close(average["weight"], expected, rtol=1e-13, atol=1e-14)


def test_swa_is_the_plain_mean() -> None:
    model = nn.Linear(3, 2).double()
    seen = [model.weight.detach().clone()]
    average = start_average(model)
    for count in range(1, 8):
        randomize(model)
        seen.append(model.weight.detach().clone())
        swa_update(average, model, count)
    torch.testing.assert_close(average["weight"], torch.stack(seen).mean(0), rtol=1e-13, atol=1e-14)


def test_the_average_is_that_of_torch_with_buffers() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    theirs: Any = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.8), use_buffers=True)
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


def test_small_steps_are_not_lost_in_half_precision() -> None:
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
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5, 3)
        self.out = nn.Linear(3, 5, bias=False)
        self.out.weight = self.words.weight


@pytest.mark.parametrize("move_on", [lambda a, m: ema_update(a, m, decay=0.5), lambda a, m: swa_update(a, m, 1)])
def test_tied_parameters_are_averaged_once_and_under_both_names_in_a_copy_that_has_lost_the_ties(move_on: Any) -> None:
    model = Tied()
    average = start_average(model)
    assert average["words.weight"] is average["out.weight"]
    nn.init.ones_(average["words.weight"])
    nn.init.zeros_(model.words.weight)
    for tied_or_not in (average, {name: torch.ones_like(tensor) for name, tensor in average.items()}):
        move_on(tied_or_not, model)
        assert [tensor.unique().tolist() for tensor in tied_or_not.values()] == [[0.5], [0.5]]


class Masked(nn.Module):
    mask: torch.Tensor
    lowest: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.full((2, 2), -torch.inf).triu(1))
        self.register_buffer("lowest", torch.tensor([torch.inf, 1.0]))
        self.register_buffer("cache", torch.ones(2), persistent=False)


def test_masks_of_infinity_do_not_become_nan() -> None:
    """Minus infinity is copied; a minimum that starts as infinity is averaged once it is finite."""
    model = Masked()
    average = start_average(model)
    for value in (4.0, 8.0):
        model.lowest = torch.full((2,), value)
        ema_update(average, model, decay=0.5, buffers="average")
    assert average["mask"].tolist() == [[0.0, -torch.inf], [0.0, 0.0]]
    assert average["lowest"].tolist() == [6.0, 5.25]


def test_buffers_that_are_not_persistent_are_not_weights() -> None:
    assert list(start_average(Masked())) == ["mask", "lowest"]


def test_constants_stay_exactly_what_they_are() -> None:
    model = nn.Linear(50, 50)
    average = start_average(model)
    for _ in range(10):
        ema_update(average, model, decay=0.999)
    assert torch.equal(average["weight"], model.weight)


def test_names_are_those_of_the_model_without_its_wrappers() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 1)))
    names = list(start_average(model))
    compiled: Any = torch.compile(nn.DataParallel(model), backend="eager")
    assert list(start_average(compiled)) == names == list(model.state_dict())
    model[1] = torch.compile(model[1], backend="eager")
    assert list(start_average(model)) == names


def test_the_model_has_the_average_within_the_block_and_its_own_afterwards() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    average = {name: torch.zeros_like(tensor) for name, tensor in start_average(model).items()}
    before, objects = copy.deepcopy(model.state_dict()), [(p, p.data_ptr()) for p in model.parameters()]
    with pytest.raises(KeyError), use_average(model, average):
        assert not any(tensor.any() for tensor in model.state_dict().values())
        raise KeyError
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(p is q and p.data_ptr() == at for p, (q, at) in zip(model.parameters(), objects, strict=True))


def test_a_graph_that_was_built_before_still_gives_its_gradients() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    loss = model(torch.ones(1, 3)).sum()
    expected = torch.autograd.grad(loss, model[0].weight, retain_graph=True)[0]
    with use_average(model, {name: torch.zeros_like(t) for name, t in model.state_dict().items()}):
        pass
    assert torch.equal(torch.autograd.grad(loss, model[0].weight)[0], expected)


def test_an_average_of_another_model_is_refused() -> None:
    model, average = nn.Linear(2, 2), start_average(nn.Linear(3, 2))
    with pytest.raises(ValueError, match=r"'weight' has the shape \(2, 2\) in the model and \(2, 3\) in the average"):
        ema_update(average, model)
    with pytest.raises(ValueError, match="the average lacks 'bias'"):
        ema_update({"weight": torch.zeros(2, 2)}, model)
    with pytest.raises(ValueError, match="the model has no 'other'"):
        ema_update({**start_average(model), "other": torch.zeros(1)}, model)


def test_a_decay_that_is_not_a_share_and_a_mean_of_no_weights_are_refused() -> None:
    model = nn.Linear(1, 1)
    for decay in (-0.1, 1, float("nan")):
        with pytest.raises(ValueError, match="decay="):
            ema_update(start_average(model), model, decay)
    with pytest.raises(ValueError, match="count=0 has to be within"):
        swa_update(start_average(model), model, count=0)
