"""BlurPool: the filter against brute force, the layers against those that they take the place of, what is replaced."""

import copy
from itertools import product

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune
from torch.utils.flop_counter import FlopCounterMode

from surgery_plugin import BlurConv2d, BlurMaxPool2d, apply_blurpool, blur_2d
from surgery_plugin.blur import _reflected_piecewise

PAIRS = st.tuples(st.integers(1, 3), st.integers(1, 3))


def reflected(place, size):
    if size == 1:
        return 0
    return -place if place < 0 else 2 * (size - 1) - place if place >= size else place


def brute_force(x, stride, along=(-2, -1)):
    """Return the blur of each value that is kept, by the definition of a convolution."""
    height, width = x.shape[-2:]
    taps = {-1: 0.25, 0: 0.5, 1: 0.25}
    rows, columns = (taps if axis in along else {0: 1.0} for axis in (-2, -1))
    y = torch.zeros(*x.shape[:-2], -(-height // stride[0]), -(-width // stride[1]), dtype=x.dtype)
    for i, j in product(range(y.shape[-2]), range(y.shape[-1])):
        for (a, p), (b, q) in product(rows.items(), columns.items()):
            value = x[..., reflected(i * stride[0] + a, height), reflected(j * stride[1] + b, width)]
            y[..., i, j] += p * q * value
    return y


@settings(max_examples=30, deadline=None)
@given(
    st.tuples(st.integers(1, 7), st.integers(1, 7)), PAIRS, st.sampled_from([(-2, -1), (-2,), (-1,), ()]), st.booleans()
)
def test_the_blur_is_the_convolution_by_definition(size, stride, along, is_batch):
    x = torch.randn(*((2, 3) if is_batch else (3,)), *size, dtype=torch.float64)
    torch.testing.assert_close(blur_2d(x, stride, along), brute_force(x, stride, along), rtol=0, atol=1e-12)


def test_the_reflection_for_deterministic_algorithms_is_the_same():
    x = torch.randn(2, 3, 5, 4)
    for height, width in product((0, 1), repeat=2):
        expected = F.pad(x, (width, width, height, height), mode="reflect")
        assert torch.equal(_reflected_piecewise(x, height, width), expected)


def test_under_autocast_the_blur_computes_in_its_dtype_as_convolutions_do():
    x = torch.randn(1, 2, 6, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert blur_2d(x).dtype is BlurMaxPool2d(2)(x).dtype is F.conv2d(x, x[:, :, :3, :3]).dtype is torch.bfloat16
        assert nn.MaxPool2d(2)(x).dtype is torch.float32


def test_the_memory_format_stays():
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    for layer in (blur_2d, BlurConv2d.from_conv(nn.Conv2d(3, 4, 3, 2)), BlurMaxPool2d(2)):
        assert layer(x).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(("blur", "dtype"), [(blur_2d, torch.uint8), (BlurMaxPool2d(2), torch.int64)])
def test_images_of_whole_numbers_are_refused_as_the_filter_would_be_zero(blur, dtype):
    with pytest.raises(TypeError, match=rf"images of {dtype} can't be blurred.* x\.float\(\)"):
        blur(torch.ones(1, 4, 4).to(dtype))


@settings(max_examples=60, deadline=None)
@given(
    size=st.tuples(st.integers(1, 11), st.integers(1, 11)),
    kernel_size=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=PAIRS,
    padding=st.one_of(st.just("valid"), st.tuples(st.integers(0, 2), st.integers(0, 2))),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    groups=st.sampled_from([1, 2, 4]),
    mode=st.sampled_from(["zeros", "reflect", "replicate", "circular"]),
)
def test_a_convolution_is_blurred_before_it_or_made_dense_and_blurred_after_it(size, mode, **options):
    conv = nn.Conv2d(4, 4, padding_mode=mode, **options).double()
    x = torch.randn(1, 4, *size, dtype=torch.float64)
    expected = _or_refuse(conv, x)
    height, width = conv.stride
    along = tuple(axis for axis in (-2, -1) if conv.stride[axis] > 1)
    first = BlurConv2d.from_conv(conv)(x)
    torch.testing.assert_close(first, conv(brute_force(x, (1, 1), along)), rtol=0, atol=1e-9)
    dense = copy.deepcopy(conv)
    dense.stride = (1, 1)
    everywhere = dense(x)
    torch.testing.assert_close(everywhere[..., ::height, ::width], expected)
    blurred = brute_force(everywhere, conv.stride, along)
    result = BlurConv2d.from_conv(conv, blur_first=False)(x)
    assert result.shape == expected.shape
    torch.testing.assert_close(result, blurred, rtol=0, atol=1e-9)


@settings(max_examples=40, deadline=None)
@given(
    size=st.tuples(st.integers(1, 11), st.integers(1, 11)),
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    stride=st.one_of(st.none(), st.integers(1, 4), st.tuples(st.integers(1, 4), st.integers(1, 4))),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=st.integers(1, 3),
    ceil_mode=st.booleans(),
)
def test_a_pool_is_made_dense_blurred_and_subsampled(size, kernel, **options):
    pool = nn.MaxPool2d(kernel, **options)
    x = torch.randn(1, 2, *size)
    expected = _or_refuse(pool, x)
    layer = BlurMaxPool2d.from_pool(pool)
    steps = (pool.stride, pool.stride) if isinstance(pool.stride, int) else pool.stride
    dense = layer._dense(x)
    assert torch.equal(dense[..., :: steps[0], :: steps[1]], expected)
    assert dense.isfinite().all() or not expected.isfinite().all()
    along = tuple(axis for axis in (-2, -1) if steps[axis] > 1)
    torch.testing.assert_close(layer(x), brute_force(dense, steps, along), equal_nan=True)


def _or_refuse(layer, x):
    """Return what the layer gives; settings that torch refuses are not tried."""
    try:
        output = layer(x)
    except RuntimeError:
        assume(condition=False)
    return output


def flops(layer, x):
    with FlopCounterMode(display=False) as counter:
        layer(x)
    return counter.get_total_flops()


@pytest.mark.parametrize("conv", [nn.Conv2d(64, 64, 3, stride=2, padding=1), nn.Conv2d(64, 128, 1, stride=2)])
def test_blurred_first_a_convolution_is_computed_only_where_it_is_kept(conv):
    x = torch.randn(1, 64, 8, 8)
    plain, first = flops(conv, x), flops(BlurConv2d.from_conv(conv), x)
    assert plain < first < 1.1 * plain
    if conv.kernel_size != (1, 1):
        assert 4 * plain < flops(BlurConv2d.from_conv(conv, blur_first=False), x)


@pytest.mark.parametrize("make", [lambda: BlurConv2d(2, 2, 3, 2), lambda: BlurMaxPool2d(3, (2, 1))])
def test_the_filter_is_where_the_layer_is_and_survives_without_being_saved(make):
    expected = make().taps
    with torch.device("meta"):
        layer = make()
    assert layer.taps.is_meta and "taps" not in layer.state_dict()
    layer = layer.to_empty(device="cpu")
    assert torch.equal(layer.taps, expected)
    assert torch.equal(layer.to(torch.bfloat16).taps, expected.bfloat16())


class Own(nn.Conv2d):
    """A convolution that computes something else."""

    def forward(self, x):
        return -super().forward(x)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(16, 16, 3, stride=2, padding=1)
        self.shortcut = nn.Conv2d(16, 16, 1, stride=(2, 2))
        self.pool = nn.MaxPool2d(3, stride=1, padding=1)

    def forward(self, x):
        return self.pool(torch.relu(self.conv(x) + self.shortcut(x)))


def net():
    return nn.Sequential(nn.Conv2d(3, 16, 3, stride=2), nn.MaxPool2d(2), Block(), nn.Conv2d(16, 8, 3, padding=1))


def test_what_subsamples_is_replaced_and_named():
    model = net()
    assert apply_blurpool(model) == ["1", "2.conv", "2.shortcut"]
    assert [type(model[0]), type(model[1]), type(model[2].conv)] == [nn.Conv2d, BlurMaxPool2d, BlurConv2d]
    assert model(torch.randn(2, 3, 33, 31)).shape == net()(torch.randn(2, 3, 33, 31)).shape == (2, 8, 4, 4)


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"replace_convs": False}, ["1"]),
        ({"replace_maxpools": False}, ["2.conv", "2.shortcut"]),
        ({"min_channels": 3}, ["0", "1", "2.conv", "2.shortcut"]),
    ],
)
def test_arguments_say_what_is_replaced(settings, names):
    assert apply_blurpool(net(), **settings) == names


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(16, 8, 3),
        nn.Conv2d(15, 8, 3, stride=2),
        Own(16, 8, 3, stride=2),
        parametrizations.weight_norm(nn.Conv2d(16, 8, 3, stride=2)),
        prune.random_unstructured(nn.Conv2d(16, 8, 3, stride=2), "weight", 0.5),
        nn.ConvTranspose2d(16, 8, 3, stride=2),
        nn.AvgPool2d(2),
        nn.MaxPool2d(2, stride=(1, 1)),
        nn.MaxPool2d(2, return_indices=True),
    ],
    ids=repr,
)
def test_what_cannot_be_blurred_is_left_alone(layer):
    assert apply_blurpool(nn.Sequential(layer)) == []


def test_parameters_and_their_names_stay():
    model = net()
    before = dict(model.named_parameters())
    apply_blurpool(model)
    after = dict(model.named_parameters())
    assert list(after) == list(before) and all(after[name] is before[name] for name in before)
    model.load_state_dict(net().state_dict())
