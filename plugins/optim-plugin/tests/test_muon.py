"""Muon for convolutions: its steps are those of torch's on flattened weights, which keep their own shapes outside."""

import re
from functools import partial

import optim_parts
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from engine_core import by_name
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.errors import ArgumentError
from optim_plugin import flat_muon

has_muon = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has Muon since 2.9")
in_both_formats = pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
SETTINGS = {"lr": 0.02, "weight_decay": 0.1, "momentum": 0.9}
OLD = "flat_muon needs torch.optim.Muon, which torch has since 2.9; this is 2."


def images():
    generator = torch.Generator().manual_seed(3)
    return [(torch.randn(6, 3, 5, 5, generator=generator), torch.randint(2, (6,), generator=generator))] * 4


def conv_net():
    torch.manual_seed(7)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(72, 2))


def by_hand(steps, bias):
    """Train a matrix in place of a convolution's weight with torch's Muon; return it in the weight's shape."""
    conv = conv_net()[0]
    matrix = conv.weight.detach().flatten(1).requires_grad_()
    optimizer = torch.optim.Muon([matrix], **SETTINGS)
    for inputs, _ in images()[:steps]:
        optimizer.zero_grad()
        F.conv2d(inputs, matrix.view(8, 3, 3, 3), bias).square().mean().backward()
        optimizer.step()
    return matrix.detach().view(8, 3, 3, 3)


@has_muon
@in_both_formats
def test_steps_are_those_of_torchs_muon_on_the_flattened_weight(memory_format):
    conv = conv_net()[0].to(memory_format=memory_format)
    pointer, optimizer = conv.weight.data_ptr(), flat_muon([conv.weight], **SETTINGS)
    for inputs, _ in images()[:3]:
        optimizer.zero_grad()
        F.conv2d(inputs, conv.weight, conv.bias).square().mean().backward()
        optimizer.step()
    expected = by_hand(3, conv.bias.detach())
    if memory_format is torch.contiguous_format:
        assert torch.equal(conv.weight, expected)
    # A convolution in another format may round otherwise, which Muon's bfloat16 makes larger.
    assert (conv.weight - expected).abs().max() < 1e-3
    assert conv.weight.data_ptr() == pointer
    assert conv.weight.is_contiguous(memory_format=memory_format)


@has_muon
def test_matrices_are_trained_as_by_torchs_muon_and_groups_names_and_hooks_stay():
    models = [conv_net(), conv_net()]
    plain = torch.optim.Muon([models[1][4].weight], **SETTINGS)  # first, as then torch has put hooks around its step
    flat = flat_muon([{"params": [models[0][0].weight], "lr": 0.5}, {"params": [models[0][4].weight]}], **SETTINGS)
    stepped = []
    flat.register_step_post_hook(lambda *_: stepped.append([p.shape for g in flat.param_groups for p in g["params"]]))
    for model, optimizer in zip(models, (flat, plain), strict=True):
        F.cross_entropy(model(images()[0][0]), images()[0][1]).backward()
        optimizer.step()
    assert torch.equal(models[0][4].weight, models[1][4].weight)
    assert [group["lr"] for group in flat.param_groups] == [0.5, 0.02]
    assert stepped == [[torch.Size([8, 3, 3, 3]), torch.Size([2, 72])]]
    named = flat_muon(((name, p) for name, p in conv_net().named_parameters() if p.dim() > 1), **SETTINGS)
    assert named.param_groups[0]["param_names"] == ["0.weight", "4.weight"]


@has_muon
def test_a_step_that_fails_or_has_no_gradient_leaves_parameters_and_state_in_their_shapes():
    conv = conv_net()[0]
    optimizer = flat_muon([conv.weight], **SETTINGS)
    optimizer.step()  # no gradient
    assert not optimizer.state
    conv.weight.grad = torch.ones_like(conv.weight)
    optimizer.step()
    optimizer.param_groups[0]["ns_steps"] = 1000
    with pytest.raises(ValueError, match="Number of steps"):
        optimizer.step()
    assert optimizer.param_groups[0]["params"] == [conv.weight]
    assert {parameter: state["momentum_buffer"].shape for parameter, state in optimizer.state.items()} == {
        conv.weight: conv.weight.shape
    }


def make_trainer(*callbacks, memory_format=torch.contiguous_format, **settings):
    model = conv_net().to(memory_format=memory_format)
    keys = {"* ndim>=2": partial(flat_muon, **SETTINGS), "*": partial(torch.optim.SGD, lr=0.1, momentum=0.9)}
    return optim_parts.make_trainer(
        (), *callbacks, model=model, data=images(), optimizers=by_name(keys), grad_clip_norm=1.0, **settings
    )


@has_muon
@in_both_formats
def test_a_run_resumed_in_mid_epoch_ends_as_the_whole_one(tmp_path, memory_format):
    with make_trainer(CheckpointSaver(tmp_path, "1ba", keep_last=9), memory_format=memory_format) as whole:
        whole.fit()
    saved = tmp_path / "ep0-ba3"
    with make_trainer(load_path=saved, load_changed="error", memory_format=memory_format) as resumed:
        momentum = resumed.state.optimizers[0].state[resumed.state.model[0].weight]["momentum_buffer"]
        assert momentum.shape == (8, 3, 3, 3)
        resumed.fit()
    assert optim_parts.same(resumed.state.model.state_dict(), whole.state.model.state_dict())


@has_muon
def test_a_vector_is_refused_with_where_it_belongs():
    says = "flat_muon takes parameters of two dimensions or more, not one of shape (8,): give it to another optimizer"
    with pytest.raises(ArgumentError, match=f"^{re.escape(says)}"):
        flat_muon(conv_net().parameters())


def test_before_torch_had_muon_it_says_from_when_on_it_has(monkeypatch):
    monkeypatch.delattr(torch.optim, "Muon", raising=False)
    with pytest.raises(ArgumentError, match=f"^{re.escape(OLD)}"):
        flat_muon([nn.Parameter(torch.ones(2, 2))])
