"""What all six algorithms share: when they act, what they need, what they say about a model that was changed before."""

from typing import Any

import pytest
import torch
from surgery_parts import run_init
from torch import nn

from engine_core import Event, State
from engine_core.errors import ArgumentError, NothingReplacedWarning
from surgery_plugin import (
    BlurPool,
    ChannelsLast,
    FusedLayerNorm,
    GatedLinearUnits,
    SqueezeExcite,
    StochasticDepth,
    apply_blurpool,
    apply_channels_last,
    apply_gated_linear_units,
    apply_squeeze_excite,
    apply_stochastic_depth,
)

ALGORITHMS = [BlurPool, SqueezeExcite, ChannelsLast, GatedLinearUnits, FusedLayerNorm, StochasticDepth]


class Bottleneck(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x.sin()


def net() -> nn.Sequential:
    """Return a model in which each of them finds one place, channels_last two."""
    return nn.Sequential(
        *(nn.Conv2d(1, 64, 3), nn.Conv2d(64, 64, 3, stride=2), Bottleneck()),
        *(nn.LayerNorm(8), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)),
    )


@pytest.mark.parametrize("make", ALGORITHMS)
def test_it_acts_at_init_only_and_a_checkpoint_needs_it(make: Any) -> None:
    assert [event for event in Event if make().match(event, State(model=net()))] == [Event.INIT]
    guarded = [Event.FIT_START, Event.FIT_END] if make is ChannelsLast else []  # where the model has a GroupNorm
    assert list(make.metadata.events) == [Event.INIT, *guarded]
    assert make.required_on_load() is True


@pytest.mark.parametrize("make", ALGORITHMS)
def test_without_a_model_it_is_refused_by_name(make: Any) -> None:
    with pytest.raises(ArgumentError, match=f"{make.metadata.name} has no model to change"):
        run_init(None, make())


@pytest.mark.parametrize("make", ALGORITHMS)
def test_the_places_are_counted_in_the_log(make: Any) -> None:
    assert run_init(net(), make()) == [{f"{make.metadata.name}/replaced": 2 if make is ChannelsLast else 1}]


@pytest.mark.parametrize("make", ALGORITHMS)
def test_a_model_without_such_places_causes_one_warning_by_name(make: Any) -> None:
    with pytest.warns(NothingReplacedWarning, match=f"^{make.metadata.name} changed nothing") as caught:
        run_init(nn.Sequential(nn.Linear(2, 2)), make())
    assert len(caught) == 1


@pytest.mark.parametrize("make", ALGORITHMS)
def test_a_second_run_on_a_changed_model_causes_no_warning_and_keeps_its_modules(make: Any) -> None:
    model = net()
    run_init(model, make())
    before = dict(model.named_modules())
    run_init(model, make())
    assert dict(model.named_modules()) == before


APPLY = [apply_blurpool, apply_squeeze_excite, apply_channels_last, apply_gated_linear_units, apply_stochastic_depth]


@pytest.mark.parametrize("apply", APPLY)
def test_its_function_takes_one_optimizer_or_several_and_they_train_what_there_is(apply: Any) -> None:
    for several in (False, True):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        assert apply(model, optimizers=[optimizer] if several else optimizer)
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        assert held == {id(parameter) for parameter in model.parameters()}
