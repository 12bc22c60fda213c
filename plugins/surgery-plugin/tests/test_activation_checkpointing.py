"""ActivationCheckpointing: the same numbers as without it, from fewer tensors, or an error."""

import pytest
import torch
from surgery_parts import run_init, train_on_digits, twins
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm

from engine_core.errors import ArgumentError, ArgumentTypeError
from surgery_plugin import ActivationCheckpointing, apply_activation_checkpointing, apply_stochastic_depth


class Block(nn.Module):
    """One that draws, and collects statistics, with a momentum and without."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.inner = nn.InstanceNorm2d(4, track_running_stats=True, momentum=None)
        self.drop = nn.Dropout(0.3)

    def forward(self, x):
        return x + self.drop(F.relu(self.inner(self.norm(self.conv(x)))))


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), *(Block() for _ in range(3)), nn.Flatten(), nn.Linear(36, 10))


def trained(*algorithms):
    model = net()
    model[2].norm.eval()  # as where a part is fine-tuned
    given = {"loss_fn": F.cross_entropy, "optimizers": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)}
    train_on_digits(model, algorithms, max_duration="5ba", grad_clip_norm=1.0, **given)
    return model.state_dict()


@pytest.mark.parametrize("blocks", [[Block], ["Block"], ["1", "3"]], ids=str)
def test_a_training_ends_with_the_weights_and_statistics_of_one_without_it_to_the_bit(blocks):
    plain, found = trained(), trained(ActivationCheckpointing(blocks))
    assert [*found] == [*plain]
    assert [name for name in plain if not torch.equal(plain[name], found[name])] == []


def test_gradients_have_the_gradients_that_they_had():
    found = []
    for blocks in ([], ["Block"]):
        model, x = net(), torch.linspace(-1, 1, 384).view(6, 1, 8, 8).requires_grad_()
        if blocks:
            apply_activation_checkpointing(model, blocks)
        torch.manual_seed(1)
        (slope,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        slope.square().sum().backward()
        found.append([x.grad, *(parameter.grad for parameter in model.parameters()), *model.buffers()])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def kept_by(model, x):
    """Return how many numbers a forward keeps for the backward."""
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.numel()) or tensor, lambda t: t):
        model(x)
    return sum(kept)


def test_blocks_keep_nothing_but_their_inputs():
    x, blocks = torch.randn(2, 4, 8, 8), nn.Sequential(Block(), Block())
    assert kept_by(blocks, x) > 8 * x.numel()
    assert apply_activation_checkpointing(blocks, [Block]) == ["0", "1"]
    assert kept_by(blocks, x) == 2 * x.numel()


def test_copies_and_pickles_compute_again_with_their_own_weights():
    model, x = net(), torch.randn(6, 1, 8, 8)
    apply_activation_checkpointing(model, [Block])
    for other in twins(model):
        with torch.no_grad():
            other[1].conv.weight.zero_()
        other(x).sum().backward()
        assert other[1].forward.block is other[1]
        assert other[1].conv.weight.grad is not None and model[1].conv.weight.grad is None


def test_the_outermost_are_taken_and_a_second_run_takes_them_again():
    model = nn.Sequential(nn.Sequential(Block(), Block()), nn.Sequential(nn.ReLU()))
    for _ in range(2):
        assert apply_activation_checkpointing(model, ["Block", nn.Sequential]) == ["0", "1"]


class Own(nn.Module):
    """One whose forward was set on the instance."""

    def __init__(self):
        super().__init__()
        self.forward = torch.relu


def dropping():
    model = nn.Sequential(Block())
    apply_stochastic_depth(model, ["Block"])
    return model


@pytest.mark.parametrize(
    ("model", "blocks", "message"),
    [
        (net, [], r"say which blocks are computed again, such as .*; the model has 3 BatchNorm2d, 3 Block, 4 Conv2d"),
        (net, ["Blok"], r"the model has no module of class or name 'Blok'; did you mean 'Block'\?"),
        (lambda: nn.Sequential(Own()), ["0"], r"'0' has a forward of its own, .* leave it out"),
        (dropping, ["0"], r"'0' is dropped at random, .* such as blocks=\['0.block'\]"),
    ],
)
def test_what_can_t_be_computed_again_is_refused(model, blocks, message):
    with pytest.raises(ArgumentError, match=message):
        run_init(model(), ActivationCheckpointing(blocks))


def test_a_block_inside_of_a_dropped_one_is_computed_again():
    assert apply_activation_checkpointing(dropping(), ["Block"]) == ["0.block"]


def test_a_block_that_changes_a_buffer_is_refused_in_its_first_forward():
    model = nn.Sequential(nn.Sequential(spectral_norm(nn.Linear(4, 4))))
    apply_activation_checkpointing(model, ["0"])
    with pytest.raises(ArgumentError, match=r"forward of '0' \(Sequential\) changes its buffer '0.parametrizations"):
        model(torch.randn(2, 4))


@pytest.mark.parametrize("blocks", ["Block", Block, [1]], ids=str)
def test_blocks_are_a_list(blocks):
    with pytest.raises(ArgumentTypeError, match="has to be a list of classes or names"):
        ActivationCheckpointing(blocks)
