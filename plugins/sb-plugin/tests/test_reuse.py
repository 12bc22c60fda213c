"""Steps that reuse the outputs of their scoring forward have the bits of steps that recompute them."""

import copy
import gc
import pickle
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from sb_plugin.reuse import LinearOutputs, unsound


class Causal(nn.Module):
    """A block of a language model, with its head."""

    def __init__(self, width=128):
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width, bias=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        n, length, width = x.shape
        q, k, v = (part.view(n, length, 4, -1).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        x = x + self.out(mixed.reshape(n, length, width))
        return self.head(x + self.down(F.gelu(self.up(self.norm2(x)))))


class Odd(nn.Module):
    """One layer twice, one with the weights of another, one not in each forward, one that is frozen."""

    def __init__(self):
        super().__init__()
        self.twice, self.tied, self.seldom, self.frozen = (nn.Linear(32, 32) for _ in range(4))
        self.tied.weight = self.twice.weight
        self.frozen.requires_grad_(False)
        self.seen = 0

    def forward(self, x):
        self.seen += 1  # twice in each step
        x = self.twice(self.twice(x).relu()).relu()
        x = self.seldom(x) if (self.seen + 1) // 2 % 3 else x
        return self.frozen(self.tied(x).relu())


def mlp(*widths):
    layers = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def mixed_modes():
    model = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(), nn.Linear(64, 64))
    model[1].eval()
    model[3].eval()
    return model


def encoder():
    return nn.TransformerEncoderLayer(128, 4, 256, dropout=0, batch_first=True)


def outputs_of(model, x, rows, reuse):
    """Return what the training forward of a step gives for the rows that it keeps."""
    reuse_now = reuse or LinearOutputs()
    with torch.no_grad(), reuse_now.recording(model, len(x)):
        model(x)
    if reuse is not None:
        reuse.keep(rows)
        reuse.replay()
    result = model(x[rows])
    reuse_now.end()
    return result


def trained(model, shape, k, reuse, adam):
    """Return all outputs, losses, gradients and weights of five steps."""
    draws, seen = torch.Generator().manual_seed(5), []
    weights = list(model.parameters())
    optimizer = torch.optim.AdamW(weights, 0.01) if adam else torch.optim.SGD(weights, 0.1, momentum=0.9)
    for _ in range(5):
        x = torch.randn(shape, generator=draws)
        rows = torch.randperm(len(x), generator=draws)[:k].sort().values
        optimizer.zero_grad()
        outputs = outputs_of(model, x, rows, reuse)
        loss = outputs.logsumexp(-1).mean() - outputs[..., 0].mean()
        loss.backward()
        optimizer.step()
        seen += [outputs.detach(), loss.detach(), *(w.grad for w in weights), *(w.detach().clone() for w in weights)]
        assert reuse is None or reuse.fault is None
    return seen


def assert_same(model, shape, k, adam=False):
    reuse = LinearOutputs()
    assert unsound(model) is None
    with_reuse = trained(copy.deepcopy(model), shape, k, reuse, adam)
    for mine, other in zip(with_reuse, trained(model, shape, k, None, adam), strict=True):
        assert (mine is None and other is None) or torch.equal(mine, other)
    return reuse


@pytest.mark.parametrize(("keep", "adam"), [(0.25, True), (0.5, False), (0.75, True)])
@pytest.mark.parametrize(
    ("make", "shape", "layers"),
    [(partial(mlp, 784, 256, 256, 10), (64, 784), 3), (encoder, (32, 64, 128), 2), (Causal, (32, 64, 128), 5)],
    ids=["mlp", "encoder", "causal"],
)
def test_five_steps_have_the_same_bits(make, shape, layers, keep, adam):
    assert assert_same(make(), shape, int(shape[0] * keep), adam).reused == layers


@pytest.mark.parametrize(("make", "shape", "reused"), [(Odd, (64, 32), 4), (mixed_modes, (64, 32), 2)])
def test_shared_seldom_used_and_frozen_layers_and_modes_keep_their_bits(make, shape, reused):
    assert assert_same(make(), shape, 32).reused >= reused


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    widths=st.lists(st.integers(2, 40), min_size=2, max_size=4),
    n=st.integers(2, 24),
    length=st.sampled_from([(), (1,), (30,), (2, 9)]),
    kept=st.floats(0, 0.99),
    adam=st.booleans(),
)
def test_any_widths_depths_and_numbers_of_rows_keep_their_bits(widths, n, length, kept, adam):
    assert_same(mlp(*widths), (n, *length, widths[0]), max(1, int(kept * n)), adam)


def replayed(layer, x, rows):
    """Return the rows of `x`, and the output for them of a layer that was compared before, and no longer is."""
    reuse, kept = LinearOutputs(), x[rows].detach().requires_grad_(x.requires_grad)
    for _ in range(2):
        with torch.no_grad(), reuse.recording(layer, len(x)):
            layer(x)
        reuse.keep(rows)
        reuse.replay()
        out = layer(kept)
        reuse.end()
        assert (reuse.reused, reuse.fault, reuse.rounding) == (1, None, None)
    return kept, out


def plain(layer, x, rows):
    kept = x[rows].detach().requires_grad_(x.requires_grad)
    return kept, layer(kept)


Run = Callable[[nn.Linear, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
ROWS = torch.arange(0, 32, 2)


@pytest.mark.parametrize(
    ("shape", "bias", "dtype"),
    [((32, 128), True, torch.float32), ((32, 5, 128), False, torch.float64), ((32, 2, 5, 128), True, torch.bfloat16)],
    ids=str,
)
@pytest.mark.parametrize("needs", ["x", "weight", "bias", "x weight", "x weight bias", "x bias"])
def test_gradients_are_those_of_linear(shape, bias, needs, dtype):
    layer = nn.Linear(128, 256, bias, dtype=dtype)
    x = torch.randn(shape, dtype=dtype, requires_grad="x" in needs.split())
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(name in needs.split())
    results = []
    for run in (replayed, plain):
        kept, out = run(layer, x, ROWS)
        wanted = [tensor for tensor in (kept, *layer.parameters()) if tensor.requires_grad]
        assert out.requires_grad == bool(wanted)
        results.append([out.detach(), *(torch.autograd.grad(out.square().sum(), wanted) if wanted else ())])
    assert all(torch.equal(mine, other) for mine, other in zip(*results, strict=True))


def test_second_derivatives_are_those_of_linear():
    layer, x, results = nn.Linear(128, 256), torch.randn(32, 5, 128, requires_grad=True), []
    for run in (replayed, plain):
        kept, out = run(layer, x, ROWS)
        (slope,) = torch.autograd.grad(out.sigmoid().sum(), kept, create_graph=True)
        results.append(torch.autograd.grad(slope.square().sum(), [kept, *layer.parameters()]))
    assert all(torch.equal(mine, other) for mine, other in zip(*results, strict=True))


@pytest.mark.parametrize("run", [replayed, plain])
@pytest.mark.parametrize(
    ("changed", "needs_x", "is_refused"), [("weight", True, True), ("weight", False, False), ("inputs", False, True)]
)
def test_what_is_changed_before_backward_is_refused_as_torch_does(run, changed, needs_x, is_refused):
    layer = nn.Linear(128, 256)
    kept, out = run(layer, torch.randn(32, 128, requires_grad=needs_x), ROWS)
    with torch.no_grad():
        (kept if changed == "inputs" else layer.weight).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace") if is_refused else nullcontext():
        out.sum().backward()


class Products(TorchDispatchMode):
    """Counts products of matrices."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm)
        return func(*args, **(kwargs or {}))


def test_nothing_is_multiplied_again_once_enough_was_compared():
    model, x, reuse, counts = mlp(64, 512, 512, 512), torch.randn(32, 64), LinearOutputs(), []
    for _ in range(3):
        with Products() as products:
            outputs_of(model, x, ROWS, reuse)
        counts.append(products.count)
    assert counts == [6 + 3 * 3, 3, 3]  # each place of a row is compared in three products


@pytest.mark.filterwarnings("ignore:None of the inputs")  # of checkpoint, in each scoring forward
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_activations_keep_their_bits(reentrant):
    model, x, grads = mlp(64, 512, 512), torch.randn(32, 64, requires_grad=True), []
    stack = nn.Sequential(nn.Linear(64, 64), nn.Module())
    stack[1].forward = partial(checkpoint, model, use_reentrant=reentrant)
    stack[1].inner = model
    for reuse in (LinearOutputs(), None):
        for _ in range(2):
            stack.zero_grad()
            outputs_of(stack, x, ROWS, reuse).square().sum().backward()
        grads.append([parameter.grad.clone() for parameter in stack.parameters()])
    assert all(torch.equal(mine, other) for mine, other in zip(*grads, strict=True))


@pytest.mark.parametrize("fails", ["nothing", "scoring", "training"])
def test_nothing_stays_on_the_modules(fails):
    model, x, reuse = mlp(64, 32, 10), torch.randn(32, 64), LinearOutputs()
    before = [dict(vars(module)) for module in model.modules()]
    wrong = torch.randn(32, 63)
    try:
        with torch.no_grad(), reuse.recording(model, 32):
            model(wrong if fails == "scoring" else x)
        reuse.keep(ROWS)
        reuse.replay()
        model(wrong[ROWS] if fails == "training" else x[ROWS])
    except RuntimeError:
        assert fails != "nothing"
    if fails != "scoring":
        reuse.end()
    assert [dict(vars(module)) for module in model.modules()] == before
    assert torch.equal(pickle.loads(pickle.dumps(model))(x), copy.deepcopy((model, reuse))[0](x))


def test_no_output_is_held_after_the_end():
    def held():
        gc.collect()
        return sum(
            type(item) is torch.Tensor and not item.is_nested and item.shape == (32, 97) for item in gc.get_objects()
        )

    model, x, reuse, before = mlp(64, 97, 10), torch.randn(32, 64), LinearOutputs(), held()
    with torch.no_grad(), reuse.recording(model, 32):
        model(x)
    while_recorded = held()
    reuse.end()
    assert (while_recorded, held()) == (before + 2, before)  # what the first layer gave, and the second got
