"""Trainable parameters that are in no optimizer are named before the first step of a fit."""

import warnings

import pytest
import torch
from torch import nn

from engine_core import Event
from engine_core.errors import UntrainedParametersWarning

from .parts import acting, at, trainer


class Net(nn.Module):
    """A net of 4 inputs and 3 classes in two layers."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, inputs):
        return self.head(self.body(inputs))


def sgd_of(part):
    return torch.optim.SGD(part.parameters(), lr=0.1)


def told(made, *durations):
    """Return what fits of these durations warn about."""
    with made, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UntrainedParametersWarning)
        for duration in durations or (None,):
            made.fit(duration)
    return [str(w.message) for w in caught if w.category is UntrainedParametersWarning]


def of(names):
    remedy = "give them to an optimizer, or set their requires_grad to False"
    return f"no optimizer trains {names} of the model: {remedy}"


@pytest.mark.parametrize("event", [Event.FIT_START, Event.EPOCH_START, Event.AFTER_DATALOADER])
def test_a_layer_that_was_replaced_before_the_first_step_is_told(event):
    def replace(event, state):
        if state.timestamp.batch == 0:
            state.model.head = nn.Linear(4, 3)

    made = trainer(model=Net(), algorithms=[acting(replace, event, writes=("model",))])
    assert told(made) == [of("head.weight and head.bias")]


def test_the_warning_is_at_the_line_of_fit_and_before_the_first_step():
    net = Net()
    before = net.body.weight.detach().clone()
    with trainer(model=net, optimizers=sgd_of(net.body)) as made:
        with warnings.catch_warnings(), pytest.raises(UntrainedParametersWarning):
            warnings.simplefilter("error", UntrainedParametersWarning)
            made.fit()
        assert torch.equal(net.body.weight, before)
        with pytest.warns(UntrainedParametersWarning) as caught:
            made.fit()
    assert [w.filename for w in caught] == [__file__]


def test_five_are_named():
    layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)), nn.Linear(4, 3))
    made = trainer(model=layers, optimizers=sgd_of(layers[4]))
    assert told(made) == [of("0.weight, 0.bias, 1.weight, 1.bias, 2.weight and 3 more")]


def test_each_fit_looks_and_says_only_what_has_changed():
    net = Net()

    def freeze_the_bias(state):
        if state.timestamp.batch == 4:
            net.head.bias.requires_grad = False

    made = trainer(model=net, optimizers=sgd_of(net.body), callbacks=[at("fit_start", freeze_the_bias)])
    made.state.max_duration = "6ba"
    assert told(made, "2ba", "2ba", "2ba") == [of("head.weight and head.bias"), of("head.weight")]


def test_frozen_tied_and_lazy_parameters_and_those_of_fsdp_are_trained_or_need_not_be():
    class FullyShardedDataParallel(nn.Module):
        """Stands for torch's, which is known by its name."""

        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

    net = Net()
    net.head = nn.Linear(4, 4)
    net.head.weight, net.head.bias = net.body.weight, nn.Parameter(torch.zeros(4), requires_grad=False)
    net.lazy, net.dealt = nn.LazyLinear(3), FullyShardedDataParallel()
    assert told(trainer(model=net, optimizers=sgd_of(net.body))) == []
    net.third = nn.Linear(4, 4)
    net.head.weight = net.third.weight
    assert told(trainer(model=net, optimizers=sgd_of(net.body))) == [of("head.weight and third.bias")]
