"""EMA on an accelerator: averages follow the weights, flattened recurrent weights stay where they are."""

import copy

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from optim_plugin import ema_update, start_average, use_average
from optim_plugin.averages import Average

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


def test_averages_follow_weights_that_move():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    average = Average(model)
    model.to("cuda")
    nn.init.ones_(model[0].weight)
    average.update(get_ema_multi_avg_fn(0.5))  # type: ignore[no-untyped-call]
    assert {tensor.device.type for tensor in average.copies().values()} == {"cuda"}


def test_the_functional_form_refuses_an_average_elsewhere():
    model = nn.Linear(1, 1)
    average = start_average(model)
    with pytest.raises(ValueError, match="is on cpu, the weight on cuda"):
        ema_update(average, model.to("cuda"))


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
