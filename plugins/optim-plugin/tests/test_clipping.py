"""Clipping by value, by weights and by the running norm: against formulas, in a run, and what is refused."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from optim_parts import make_trainer, pause_after, same
from parts import batches, net
from torch import nn
from torch.nn import functional as F

from engine_core import Callback, Event, Logger, State
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from optim_plugin import GradientClipping, ZClip, clip_adaptively, spike_limit

DATA = batches(8, 8, 8, 8)


def train_by_hand(clip):
    """Return the weights after 8 batches; `clip` changes the gradients of a model before each step."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, targets in DATA * 2:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        clip(model)
        optimizer.step()
    return dict(model.state_dict())


def trained(*algorithms, callbacks=(), **settings):
    with make_trainer(algorithms, *callbacks, data=DATA, **settings) as trainer:
        trainer.fit()
    return dict(trainer.state.model.state_dict())


def clip_units(model, threshold=0.05):
    """Brock et al. 2021, eq. 3, unit by unit."""
    for p in model.parameters():
        for weights, gradient in zip(p.detach(), p.grad, strict=True) if p.dim() > 1 else [(p.detach(), p.grad)]:
            largest = threshold * max(weights.norm().item(), 1e-3)
            if gradient.norm().item() > largest:
                gradient.mul_(largest / gradient.norm().item())


def test_training_by_value_and_by_weights_equals_the_hand_written_loop():
    by_value = train_by_hand(lambda model: nn.utils.clip_grad_value_(model.parameters(), 0.02))
    assert same(trained(GradientClipping("value", 0.02)), by_value)
    ours, by_weights = trained(GradientClipping("adaptive", 0.05)), train_by_hand(clip_units)
    assert all(torch.allclose(ours[name], weight, atol=1e-6) for name, weight in by_weights.items())
    assert not torch.allclose(by_weights["0.weight"], trained()["0.weight"], atol=1e-3)


SIZES = st.sampled_from([(3,), (2, 3), (2, 3, 2), (1, 2, 2, 2)])
SCALES = st.floats(-6, 6).map(lambda power: 10**power)


@given(SIZES, SCALES, SCALES, st.floats(1e-3, 10), st.sampled_from([torch.float32, torch.bfloat16]))
def test_no_unit_exceeds_its_limit_and_shorter_ones_and_zeros_stay(size, scale, steepness, threshold, dtype):
    weight = nn.Parameter((scale * torch.randn(size)).to(dtype))
    weight.grad = gradient = (steepness * torch.randn(size)).to(dtype)
    weight.grad.view(-1)[: weight[0].numel() if weight.dim() > 1 else 0] = 0.0
    before = gradient.clone()
    clip_adaptively([weight], threshold)
    rows = [(weight, gradient, before)] if weight.dim() < 2 else zip(weight, gradient, before, strict=True)
    for own, now, was in rows:
        limit = threshold * max(own.detach().float().norm().item(), 1e-3)
        assert now.float().norm().item() <= limit * 1.02 or torch.equal(now, was)
        assert was.float().norm().item() > limit * 0.98 or torch.equal(now, was)


def test_what_it_cannot_do_is_refused():
    with pytest.raises(
        ValueError, match=r"clipping_type='norm' is what the loop .*: Trainer\(\.\.\., grad_clip_norm=0.5\)"
    ):
        GradientClipping("norm", 0.5)
    with pytest.raises(ValueError, match=r"clipping_type='adaptiv' has to be .*did you mean 'adaptive'"):
        GradientClipping("adaptiv", 0.5)
    embedding = nn.Embedding(4, 2, sparse=True)
    embedding(torch.tensor([1])).sum().backward()
    for algorithm in (GradientClipping("value", 1.0), GradientClipping("adaptive", 1.0), ZClip()):
        with pytest.raises(ValueError, match=r"shape \(4, 2\) has a sparse gradient.*sparse=False"):
            algorithm.apply(Event.AFTER_TRAIN_BATCH, State(model=embedding), Logger())


class Norms:
    """Kumar et al. 2025, algorithm 1, with its own names."""

    def __init__(self, warmup, alpha=0.97, z_thres=2.5):
        self.warmup, self.alpha, self.z_thres, self.buffer = warmup, alpha, z_thres, []
        self.limits = []

    def clip(self, model):
        gradients = [p.grad for p in model.parameters()]
        g = torch.stack([gradient.norm() for gradient in gradients]).norm().item()
        if len(self.buffer) < self.warmup:
            self.buffer.append(g)
            self.mean = sum(self.buffer) / len(self.buffer)
            self.var = sum((x - self.mean) ** 2 for x in self.buffer) / len(self.buffer)
            return
        std = self.var**0.5
        z = (g - self.mean) / (std + 1e-6)
        if z > self.z_thres:
            eta = z / self.z_thres
            limit = self.mean + self.z_thres * std / eta
            for gradient in gradients:
                gradient.mul_(limit / g)
            self.limits.append((g, limit))
            g = limit
        self.mean = self.alpha * self.mean + (1 - self.alpha) * g
        self.var = self.alpha * self.var + (1 - self.alpha) * (g - self.mean) ** 2


def test_training_by_the_running_norm_equals_the_hand_written_loop_also_resumed(tmp_path):
    oracle = Norms(warmup=2, alpha=0.8, z_thres=0.5)
    expected = train_by_hand(oracle.clip)
    assert len(oracle.limits) > 1
    arguments = {"z_threshold": 0.5, "alpha": 0.8, "warmup": 2}
    zclip, rest = ZClip(**arguments), ZClip(**arguments)
    assert all(torch.allclose(value, expected[name], atol=1e-6) for name, value in trained(zclip).items())
    state = zclip.state_dict()
    assert [state["mean"], state["variance"]] == pytest.approx([oracle.mean, oracle.var], rel=1e-4)
    for batch in (1, 5):  # while the first mean is taken, and after it
        trained(ZClip(**arguments), callbacks=[CheckpointSaver(tmp_path / str(batch)), pause_after(batch)])
        assert same(trained(rest, load_path=tmp_path / str(batch)), trained(zclip))
        assert rest.state_dict() == zclip.state_dict()


@given(st.floats(0, 100), st.floats(0, 100), st.floats(0, 100), st.floats(0.1, 10))
def test_a_spike_is_shortened_the_more_the_higher_it_is_and_nothing_else_changes(norm, mean, variance, z_threshold):
    limit, start = spike_limit(norm, mean, variance, z_threshold), mean + z_threshold * (variance**0.5 + 1e-6)
    assert limit <= max(norm, start)
    assert limit == norm or norm >= start * (1 - 1e-9)
    assert limit == norm or spike_limit(2 * norm, mean, variance, z_threshold) <= limit


class Break(Callback):
    """Gives the batch at 5 a gradient without a norm."""

    def after_backward(self, state, logger):
        if state.timestamp.batch == 5:
            next(state.model.parameters()).grad.fill_(math.nan)


def test_a_norm_that_is_not_finite_changes_no_statistics():
    zclip = ZClip(warmup=2)
    skip = type("Skip", (Callback,), {"after_train_batch": lambda self, state, logger: state.skip_step()})
    trained(zclip, callbacks=[Break(), skip()])
    assert math.isfinite(zclip.state_dict()["mean"]) and zclip.state_dict()["variance"] >= 0
