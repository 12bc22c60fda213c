"""A tensor's digest depends on each of its bits, also where it is computed on a GPU, and on nothing else."""

import itertools
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from engine_core_author.audit import changed_leaves, digest, fingerprint
from engine_core_author.audit.digest import _mixed

DTYPES = [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.int64, torch.bool]


def changes(before, after):
    return changed_leaves(fingerprint(before), fingerprint(after))


def of_bytes(octets, dtype):
    return torch.tensor(octets, dtype=torch.uint8).view(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_bit_counts(dtype):
    width = torch.empty((), dtype=dtype).element_size()
    octets = [0] * (3 * width)
    before = of_bytes(octets, dtype)
    for place in range(len(octets)):
        for bit in [0] if dtype is torch.bool else range(8):
            flipped = [*octets]
            flipped[place] = 1 << bit
            after = of_bytes(flipped, dtype)
            assert changes(before, after) == ("",)
            assert _mixed(before).item() != _mixed(after).item()


@settings(max_examples=30)
@given(st.lists(st.integers(0, 255), max_size=40), st.lists(st.integers(0, 255), max_size=40))
def test_digests_are_equal_where_the_bytes_are(first, second):
    a, b = torch.tensor(first, dtype=torch.uint8), torch.tensor(second, dtype=torch.uint8)
    assert (changes(a, b) == ()) == (first == second)
    assert (len(first), _mixed(a).item()) == (len(second), _mixed(b).item()) if first == second else True


@settings(max_examples=30)
@given(st.lists(st.floats(width=32), min_size=2, max_size=20), st.data())
def test_no_two_negations_cancel_on_a_gpu(numbers, data):
    x = torch.tensor(numbers)
    signs = data.draw(st.lists(st.sampled_from([1.0, -1.0]), min_size=len(numbers), max_size=len(numbers)))
    flipped = x * 1
    flipped.view(torch.int32).bitwise_xor_((torch.tensor(signs) < 0).int() << 31)
    same = torch.equal(x.view(torch.int32), flipped.view(torch.int32))
    assert (_mixed(x).item() == _mixed(flipped).item()) == same


def test_the_order_of_equal_words_counts_on_a_gpu_in_each_piece(monkeypatch):
    x = torch.arange(64)
    whole = _mixed(x).item()
    monkeypatch.setattr(digest, "_PIECE", 7)
    assert _mixed(x).item() == whole
    digests = {_mixed(x.roll(shift)).item() for shift in range(64)}
    assert len(digests) == 64


def test_a_piece_of_a_larger_tensor_has_the_digest_of_its_copy():
    for start, length in itertools.product(range(9), (16, 21)):
        x = torch.arange(40, dtype=torch.uint8)[start : start + length]
        assert _mixed(x).item() == _mixed(x.clone()).item()
        assert changes(x, x.clone()) == ()


def test_layout_in_memory_does_not_count():
    x = torch.randn(2, 3, 4, 4)
    assert changes(x, x.contiguous(memory_format=torch.channels_last)) == ()
    assert changes(x[:, ::2], x[:, ::2].clone()) == ()
    assert changes(x.mT, x) == ("",)


@pytest.mark.parametrize(
    "after",
    [torch.zeros(4).int(), torch.zeros(2, 2), torch.zeros(4, requires_grad=True), torch.zeros(4, device="meta")],
    ids=["dtype", "shape", "requires_grad", "device"],
)
def test_dtype_shape_requires_grad_and_device_count(after):
    assert changes(torch.zeros(4), after) == ("",)


def test_nothing_but_the_form_of_a_tensor_without_content_counts():
    assert changes(torch.empty(3, device="meta"), torch.empty(3, device="meta")) == ()
    assert changes(torch.empty(0), torch.empty(0)) == ()
    assert changes(torch.empty(0, 2), torch.empty(0, 3)) == ("",)


def test_a_gradient_that_comes_goes_or_changes_is_a_leaf():
    x = torch.ones(2, requires_grad=True)
    bare = fingerprint({"x": x})
    x.sum().backward()
    with_grad = fingerprint({"x": x})
    x.grad.mul_(2)
    assert changed_leaves(bare, with_grad) == ("x.grad",)
    assert changed_leaves(with_grad, fingerprint({"x": x})) == ("x.grad",)


def changed_by(value, do):
    before = fingerprint(value)
    undo = do()
    changed = changed_leaves(before, fingerprint(value))
    undo.remove()
    assert changed_leaves(before, fingerprint(value)) == ()
    return changed


def test_the_hooks_of_a_tensor_are_leaves_while_they_are_there():
    parameter = nn.Parameter(torch.zeros(2))
    outputs = parameter * 2
    assert changed_by({"p": parameter}, lambda: parameter.register_hook(torch.sign)) == ("p.backward_hooks",)
    assert changed_by({"p": parameter}, lambda: parameter.register_post_accumulate_grad_hook(torch.sign)) == (
        "p.post_accumulate_grad_hooks",
    )
    assert changed_by(outputs, lambda: outputs.register_hook(torch.sign)) == ("backward_hooks",)


def test_an_equal_tensor_through_which_no_gradient_flows_is_another():
    loss = torch.ones(2, requires_grad=True).sum()
    assert changes(loss, loss.clone()) == ()
    assert changes(loss, loss.detach()) == ("",)
    assert changes(loss, loss.detach().requires_grad_()) == ("",)


def test_a_conjugate_and_a_lazy_negation_count_by_what_they_show():
    z = torch.tensor([1 + 2j])
    assert changes(z.conj(), torch.tensor([1 - 2j])) == ()
    assert changes(z.conj().imag, torch.tensor([-2.0])) == ()


def test_sparse_tensors_are_read():
    index, values = [[0, 2]], [1.0, 2.0]
    sparse = torch.sparse_coo_tensor(index, values, (3,), check_invariants=True)
    assert changes(sparse, sparse.clone()) == ()
    assert changes({"g": sparse}, {"g": sparse * 2}) == ("g.values",)


@pytest.mark.parametrize(("layout", "leaf"), [(torch.jagged, "_values"), (torch.strided, "[1]")])
def test_nested_tensors_are_read(layout, leaf):
    rows = [torch.ones(2), torch.ones(3)]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The PyTorch API of nested tensors", UserWarning)
        nested = [torch.nested.nested_tensor(r, layout=layout) for r in (rows, rows, [rows[0], 2 * rows[1]])]
    assert (changes(nested[0], nested[1]), changes(nested[0], nested[2])) == ((), (leaf,))


def test_a_parameter_counts_by_its_identity_too():
    parameter = nn.Parameter(torch.zeros(2))
    assert changes(parameter, nn.Parameter(torch.zeros(2))) == ("",)
    assert changes(parameter, parameter) == ()


def test_a_parameter_that_is_not_there_yet_is_read_as_that():
    lazy = nn.LazyLinear(2)
    before = fingerprint(lazy)
    assert changed_leaves(before, fingerprint(lazy)) == ()
    lazy(torch.zeros(1, 3))
    assert "weight" in changed_leaves(before, fingerprint(lazy))


def test_a_subclass_that_overrides_operations_is_read_all_the_same():
    class Silent(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            raise AssertionError("asked")

    with torch._C.DisableTorchFunctionSubclass():
        x = torch.zeros(2).as_subclass(Silent)
    assert list(fingerprint({"x": x})) == ["", "x"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_on_a_gpu_each_bit_counts_where_it_is(dtype):
    width = torch.empty((), dtype=dtype).element_size()
    before = of_bytes([0] * (3 * width), dtype).cuda()
    for place in range(3 * width):
        flipped = [0] * (3 * width)
        flipped[place] = 1
        after = of_bytes(flipped, dtype)
        assert changes({"x": before}, {"x": after.cuda()}) == ("x",)
        assert changes({"x": after.cuda()}, {"x": after.cuda()}) == ()
        assert _mixed(after.cuda()).item() == _mixed(after).item()
