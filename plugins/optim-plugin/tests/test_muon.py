"""Muon: its steps are those of the formula on flattened weights, and in bfloat16 those of torch's."""

import re
from functools import partial

import optim_parts
import pytest
import torch
from torch import nn

from engine_core import by_name
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.errors import ArgumentError
from optim_plugin import Muon

in_both_formats = pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
SETTINGS = {"lr": 0.02, "weight_decay": 0.1, "momentum": 0.9}


def images():
    generator = torch.Generator().manual_seed(3)
    return [(torch.randn(6, 3, 5, 5, generator=generator), torch.randint(2, (6,), generator=generator))] * 4


def conv_net():
    torch.manual_seed(7)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(72, 2))


def by_hand(weight, gradients):
    """Return a weight after these steps, from the formulas of the authors' page, in float64."""
    shape, matrix, momentum = weight.shape, weight.detach().double().flatten(1), 0
    rows, columns = matrix.shape
    for gradient in [each.double().flatten(1) for each in gradients]:
        momentum = SETTINGS["momentum"] * momentum + (1 - SETTINGS["momentum"]) * gradient
        nesterov = SETTINGS["momentum"] * momentum + (1 - SETTINGS["momentum"]) * gradient
        u, singular, v = torch.linalg.svd(nesterov / nesterov.norm(), full_matrices=False)
        for _ in range(5):
            singular = 3.4445 * singular - 4.775 * singular**3 + 2.0315 * singular**5
        update = u @ singular.diag() @ v
        matrix = (1 - SETTINGS["lr"] * SETTINGS["weight_decay"]) * matrix
        matrix -= SETTINGS["lr"] * max(1, rows / columns) ** 0.5 * update
    return matrix.view(shape)


def stepped(optimizer, weight, gradients):
    for gradient in gradients:
        weight.grad = gradient.clone(memory_format=torch.preserve_format)
        optimizer.step()
    return weight.detach()


@in_both_formats
@pytest.mark.parametrize("shape", [(8, 3, 3, 3), (40, 3, 3, 3), (6, 4, 1, 1)])
def test_steps_are_those_of_the_formula_on_the_weight_as_a_matrix(shape, memory_format):
    torch.manual_seed(5)
    weight = nn.Parameter(torch.randn(shape).to(memory_format=memory_format))
    gradients = [torch.randn(shape).to(memory_format=memory_format) for _ in range(3)]
    expected, pointer = by_hand(weight, gradients), weight.data_ptr()
    found = stepped(Muon([weight], **SETTINGS), weight, gradients)
    assert torch.allclose(found.double(), expected, atol=1e-6)
    assert weight.data_ptr() == pointer
    assert weight.is_contiguous(memory_format=memory_format)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has Muon since 2.9")
def test_matrices_in_bfloat16_are_trained_as_by_torchs_muon_bit_for_bit():
    torch.manual_seed(5)
    own, theirs = (nn.Parameter(value) for value in torch.randn(12, 5).expand(2, -1, -1).clone())
    gradients = [torch.randn(12, 5) for _ in range(3)]
    found = stepped(Muon([own], **SETTINGS, dtype=torch.bfloat16), own, gradients)
    assert torch.equal(found, stepped(torch.optim.Muon([theirs], **SETTINGS), theirs, gradients))


def test_groups_have_their_settings_and_names_and_a_weight_without_a_gradient_stays():
    model = conv_net()
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.dim() > 1]
    optimizer = Muon([{"params": named[:1], "lr": 0.5}, {"params": named[1:]}], **SETTINGS)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.02]
    assert [group["param_names"] for group in optimizer.param_groups] == [["0.weight"], ["4.weight"]]
    before = model[0].weight.detach().clone()
    optimizer.step()
    assert torch.equal(model[0].weight, before) and not optimizer.state


def test_a_closure_computes_the_gradients_of_a_step():
    weight = nn.Parameter(torch.eye(3))
    optimizer = Muon([weight], lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 3.0
    assert weight.diagonal().max() < 1


def make_trainer(*callbacks, memory_format=torch.contiguous_format, **settings):
    model = conv_net().to(memory_format=memory_format)
    keys = {"* ndim>=2": partial(Muon, **SETTINGS), "*": partial(torch.optim.SGD, lr=0.1, momentum=0.9)}
    return optim_parts.make_trainer(
        (), *callbacks, model=model, data=images(), optimizers=by_name(keys), grad_clip_norm=1.0, **settings
    )


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


def test_a_vector_is_refused_with_where_it_belongs_and_so_is_a_negative_setting():
    says = "Muon takes parameters of two dimensions or more, not one of shape (8,): give it to another optimizer"
    with pytest.raises(ArgumentError, match=f"^{re.escape(says)}"):
        Muon(conv_net().parameters())
    with pytest.raises(ArgumentError, match=r"Muon: momentum is -0\.5"):
        Muon([nn.Parameter(torch.ones(2, 2))], momentum=-0.5)
