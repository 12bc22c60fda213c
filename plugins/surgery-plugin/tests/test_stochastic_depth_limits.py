"""Stochastic depth with unusual blocks, with several instances, and beside GatedLinearUnits and FusedLayerNorm."""

import pytest
import torch
from surgery_parts import run_init
from torch import nn

from surgery_plugin import StochasticBlock, StochasticDepth, apply_stochastic_depth


class BasicBlock(nn.Module):
    """Adds something to its input, in the way that it is given."""

    def __init__(self, add):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.add = add

    def forward(self, x):
        return self.add(x)


class Other(BasicBlock):
    pass


IN_PLACE = {
    "x += f(x)": lambda x: x.add_(x.sin()),
    "relu_(x) first": lambda x: x + torch.relu_(x),
    "a view": lambda x: x + x.view(-1).mul_(2).view_as(x),
}


@pytest.mark.parametrize(
    ("add", "per"), list(zip(IN_PLACE.values(), ["sample", "batch", "sample"], strict=True)), ids=IN_PLACE
)
def test_blocks_that_change_their_input_are_refused_by_name_in_training(add, per):
    """Their input would be their output where they are dropped, so that they never were."""
    model = nn.Sequential(BasicBlock(add))
    apply_stochastic_depth(model, drop_per=per)
    with pytest.raises(ValueError, match=r"the block '0' \(BasicBlock\) changes its input in place.* x = x \+ f\(x\)"):
        model(torch.randn(2, 4))
    model.eval()(torch.randn(2, 4))


@pytest.mark.parametrize(
    "add", [lambda x: x.sin().add_(x), lambda x: torch.relu_(x)[:, :2]], ids=["own", "no identity"]
)
def test_blocks_that_work_in_place_elsewhere_or_have_no_identity_are_not_refused(add):
    model = nn.Sequential(BasicBlock(add))
    apply_stochastic_depth(model)
    model(torch.randn(2, 4))


def test_in_inference_mode_a_block_in_training_can_still_be_dropped():
    """Where torch counts no versions, by which a change in place is known."""
    model = nn.Sequential(BasicBlock(torch.sin))
    apply_stochastic_depth(model, drop_rate=0.5, generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        x = torch.randn(32, 4)
        assert 0 < (model(x) == x).all(1).sum() < 32


def test_dropped_for_the_batch_under_autocast_the_output_has_the_dtype_that_the_block_gives():
    model = nn.Sequential(BasicBlock(torch.sin))
    model[0].add = model[0].linear
    apply_stochastic_depth(model, drop_rate=0.5, drop_per="batch", generator=torch.Generator().manual_seed(3))
    x = torch.randn(2, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outs = [model(x) for _ in range(20)]
    assert any(torch.equal(out, x.bfloat16()) for out in outs)
    assert {out.dtype for out in outs} == {torch.bfloat16}


class Residual(BasicBlock):
    """Trains, and counts how often it is computed."""

    def __init__(self):
        super().__init__(lambda x: x + self.linear(x))
        self.computed = 0

    def forward(self, x):
        self.computed += 1
        return super().forward(x)


def test_where_all_blocks_are_dropped_and_nothing_before_them_trains_the_loss_has_a_graph_of_zeros():
    """As where layer freezing has frozen what comes first: backward through x alone would raise."""
    model = nn.Sequential(Residual(), Residual())
    generator = torch.Generator().manual_seed(3)
    apply_stochastic_depth(model, [Residual], 0.9, "uniform", "batch", generator=generator)
    x, slopes = torch.randn(2, 4), []
    for _ in range(20):
        model.zero_grad()
        out = model(x)
        out.sum().backward()
        if torch.equal(out, x):
            slopes.append(model[0].linear.weight.grad.abs().sum().item())
    assert len(slopes) > 10 and not any(slopes)
    assert [block.block.computed for block in model] == [20, model[1].block.computed] and model[1].block.computed < 10


@pytest.mark.parametrize("why", ["x has a graph", "nothing trains", "no gradients"])
def test_a_dropped_block_that_no_graph_depends_on_is_not_computed(why):
    model = nn.Sequential(Residual())
    apply_stochastic_depth(model, [Residual], 0.9, drop_per="batch", generator=torch.Generator().manual_seed(3))
    model.requires_grad_(why != "nothing trains")
    with torch.set_grad_enabled(why != "no gradients"):
        for _ in range(20):
            model(torch.randn(2, 4, requires_grad=why == "x has a graph"))
    assert model[0].block.computed < 10


def test_two_instances_on_one_block_are_refused_by_name():
    with pytest.raises(ValueError, match=r"two instances in one run drop the block '0' \(BasicBlock\)"):
        run_init(nn.Sequential(BasicBlock(torch.sin)), StochasticDepth(drop_rate=0.5), StochasticDepth())


def test_two_instances_on_their_own_blocks_drop_them_independently():
    model = nn.Sequential(BasicBlock(torch.sin), Other(torch.sin))
    run_init(model, *(StochasticDepth((target,), 0.5) for target in ("BasicBlock", "Other")))
    draws = [block.draws.kept(0.5, 50) for block in model]
    assert [block.rate for block in model] == [0.5, 0.5]
    assert not torch.equal(*draws)


def test_another_run_may_take_over_the_blocks_of_an_earlier_one():
    model, first = nn.Sequential(BasicBlock(torch.sin)), StochasticDepth(drop_rate=0.5)
    run_init(model, first)
    run_init(model, StochasticDepth(drop_rate=0.25))
    assert isinstance(model[0], StochasticBlock) and model[0].rate == 0.25
    run_init(model, first)
    assert model[0].rate == 0.5
