"""The numbers of stochastic depth: its formula, its expectation, its rates, its gradients."""

import math

import pytest
import torch
from torch import nn

from surgery_plugin import apply_stochastic_depth
from surgery_plugin.stochastic_block import drop_rates


class Bottleneck(nn.Module):
    """Adds a linear map, and counts how often it computed."""

    def __init__(self, size=6):
        super().__init__()
        self.linear = nn.Linear(size, size)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x + self.linear(x)


class BasicBlock(Bottleneck):
    """Ends with a ReLU, as in a ResNet."""

    def forward(self, x):
        return torch.relu(super().forward(x))


def dropped(block, rate, per="sample", seed=3):
    """Return a block that is dropped at random."""
    model = nn.Sequential(block)
    generator = torch.Generator().manual_seed(seed)
    apply_stochastic_depth(model, drop_rate=rate, drop_per=per, generator=generator)
    return model[0]


def gates(n, rate, seed=3):
    return torch.rand(n, generator=torch.Generator().manual_seed(seed)) >= rate


def test_rows_that_are_dropped_stay_and_the_others_add_more():
    block = Bottleneck()
    wrapped, x, kept = dropped(block, 0.4), torch.randn(32, 6), gates(32, 0.4)
    out = wrapped(x)
    assert 0 < kept.sum() < 32
    assert torch.equal(out[~kept], x[~kept])
    torch.testing.assert_close(out[kept], x[kept] + block.linear(x[kept]) / 0.6)


@pytest.mark.parametrize(("kind", "per"), [(Bottleneck, "batch"), (BasicBlock, "sample")])
def test_the_expectation_in_training_is_the_output_in_evaluation(kind, per):
    """Within five standard errors, for each of 24 numbers."""
    wrapped, x, draws = dropped(kind(), 0.3, per), torch.randn(4, 6), 4000
    with torch.no_grad():
        outs = torch.stack([wrapped(x) for _ in range(draws)])
        expected = wrapped.eval()(x)
    errors = outs.std(0) / math.sqrt(draws)
    assert ((outs.mean(0) - expected).abs() <= 5 * errors + 1e-6).all()
    assert errors.max() > 0


@pytest.mark.parametrize("per", ["sample", "batch"])
def test_in_evaluation_a_block_computes_as_before_and_nothing_is_drawn(per):
    block, x = Bottleneck(), torch.randn(4, 6)
    wrapped = dropped(block, 0.5, per).eval()
    before = wrapped.draws.generator.get_state()
    assert torch.equal(wrapped(x), block(x))
    assert torch.equal(wrapped.draws.generator.get_state(), before)


def test_gradients_of_dropped_rows_pass_through_the_identity_alone():
    block = Bottleneck()
    wrapped, kept = dropped(block, 0.5), gates(16, 0.5)
    x, slope = torch.randn(16, 6, requires_grad=True), torch.randn(16, 6)
    (wrapped(x) * slope).sum().backward()
    assert torch.equal(x.grad[~kept], slope[~kept])
    torch.testing.assert_close(x.grad[kept], slope[kept] + slope[kept] @ block.linear.weight / 0.5)
    torch.testing.assert_close(block.linear.weight.grad, slope[kept].T @ x[kept].detach() / 0.5)


def test_infinite_values_of_a_dropped_row_do_not_come_through():
    """As values; as a gradient they do, because 0 * inf is NaN."""

    class Bottleneck(nn.Module):
        def forward(self, x):
            return x / 0

    wrapped, x, kept = dropped(Bottleneck(), 0.5), torch.ones(16, 2), gates(16, 0.5)
    assert torch.equal(wrapped(x)[~kept], x[~kept])


def test_the_rates_grow_linearly_to_the_last_block_as_in_the_paper():
    """p_l = 1 - l / L * (1 - p_L), l from 1: the input, not the first block, is what is never dropped."""
    model = nn.Sequential(*(Bottleneck() for _ in range(4)))
    assert apply_stochastic_depth(model, drop_rate=0.5) == ["0", "1", "2", "3"]
    assert [block.rate for block in model] == [0.125, 0.25, 0.375, 0.5]
    assert drop_rates(3, 0.2, "uniform") == [0.2, 0.2, 0.2]


def test_per_batch_all_rows_share_one_draw_and_a_dropped_block_is_not_computed():
    block, x, expected = Bottleneck(), torch.randn(4, 6, requires_grad=True), gates(50, 0.5).tolist()
    wrapped = dropped(block, 0.5, "batch")
    computed = []
    for kept in expected:
        before, out = block.calls, wrapped(x)
        computed.append(block.calls > before)
        assert torch.equal(out, x) is not kept
    first = expected.index(True) + 1  # until a block has run, the shape of its output is unknown
    assert computed[0] is True
    assert computed[first:] == expected[first:]
    assert computed.count(False) in {expected.count(False), expected.count(False) - 1}


@pytest.mark.parametrize("per", ["sample", "batch"])
def test_a_block_with_an_output_of_another_shape_is_always_kept(per):
    class Bottleneck(nn.Linear):
        pass

    block, x = Bottleneck(6, 3), torch.randn(8, 6)
    wrapped = dropped(block, 0.9, per)
    for _ in range(20):
        assert torch.equal(wrapped(x), block(x))
