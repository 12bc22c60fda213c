"""A fingerprint sees each change of a State field, and each bit of a tensor, also on a GPU, and names the leaf."""

import copy
import dataclasses
import enum
import itertools
import warnings
from collections import OrderedDict, UserDict, UserList, deque
from collections.abc import Sequence
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from parts import net
from torch import nn

from engine_core import State
from engine_core_author.audit import changed_leaves, digest, fingerprint, fingerprint_state
from engine_core_author.audit.digest import _mixed


class Pair(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Sample:
    x: torch.Tensor
    name: str = "a"


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x


class History(deque):
    def __init__(self, items=()):
        super().__init__(items)
        self.kept = True


class Rows(Sequence):
    """A sequence that reads its items from a file, as it were."""

    def __init__(self, *rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, place):
        raise AssertionError("read")


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


def zeros():
    return torch.zeros(2)


def ones():
    return torch.ones(2)


def changes(before, after):
    return changed_leaves(fingerprint(before), fingerprint(after))


@pytest.mark.parametrize(
    ("before", "after", "leaves"),
    [
        ((zeros(), zeros()), (zeros(), ones()), ("[1]",)),
        ([zeros()], [ones()], ("[0]",)),
        ({"x": zeros(), "y": 1}, {"x": ones(), "y": 2}, ("x", "y")),
        ({"a": {"b": [zeros()]}}, {"a": {"b": [ones()]}}, ("a/b[0]",)),
        ((zeros(), {"y": zeros()}), (zeros(), {"y": ones()}), ("[1]/y",)),
        ({1: zeros(), "1": zeros()}, {1: ones(), "1": zeros()}, ("[1]",)),
        (OrderedDict(x=zeros()), OrderedDict(x=ones()), ("x",)),
        (UserDict(x=zeros()), UserDict(x=ones()), ("x",)),
        (MappingProxyType({"x": zeros()}), MappingProxyType({"x": ones()}), ("x",)),
        (Pair(zeros(), 1), Pair(ones(), 1), ("x",)),
        ([Pair(zeros(), 1)], [Pair(zeros(), 2)], ("[0].y",)),
        (Sample(zeros()), Sample(ones()), ("x",)),
        ([Sample(zeros())], [Sample(zeros(), "b")], ("[0].name",)),
        (SimpleNamespace(x=zeros()), SimpleNamespace(x=ones()), ("x",)),
        (Slotted(zeros()), Slotted(ones()), ("x",)),
        (deque([zeros()]), deque([ones()]), ("[0]",)),
        (History([zeros()]), History([ones()]), ("[0]",)),
        (deque([1, 2]), deque([2, 1]), ("",)),
        (UserList([zeros()]), UserList([ones()]), ("data[0]",)),
        ([Rows(zeros())], [Rows(ones())], ("[0].rows[0]",)),
        (bytearray(b"ab"), bytearray(b"ac"), ("",)),
        (["a", "b"], ["a", "c"], ("",)),
        (list(range(1000)), [*range(999), 0], ("",)),
        ({"a", "b"}, {"a", "c"}, ("",)),
        (b"ab", b"ac", ("",)),
        (Colour.RED, Colour.BLUE, ("",)),
        (1, True, ("",)),
        (0.0, -0.0, ("",)),
        (torch.float16, torch.float32, ("",)),
    ],
)
def test_a_change_is_named_by_the_path_of_its_leaf_and_a_copy_is_not_a_change(before, after, leaves):
    assert changes(before, after) == leaves
    assert changes(before, _copied(before)) == ()


def _copied(value):
    return MappingProxyType(dict(value)) if isinstance(value, MappingProxyType) else copy.deepcopy(value)


@pytest.mark.parametrize(
    ("before", "after", "leaves"),
    [
        ((zeros(),), [zeros()], ("",)),
        ((zeros(), zeros()), (zeros(),), ("", "[1]")),
        ({"x": zeros()}, {"x": zeros(), "y": zeros()}, ("", "y")),
        ((1, 2), Pair(1, 2), ("",)),
        ((zeros(), 2), Pair(zeros(), 2), ("", "[0]", "[1]", "x", "y")),
        (None, zeros(), ("",)),
    ],
)
def test_another_container_another_length_and_another_kind_are_changes(before, after, leaves):
    assert changes(before, after) == leaves


def test_only_the_identity_of_an_object_inside_an_object_counts():
    inner = SimpleNamespace(x=1)
    before = fingerprint(SimpleNamespace(inner=inner))
    inner.x = 2
    assert changed_leaves(before, fingerprint(SimpleNamespace(inner=inner))) == ()
    assert changed_leaves(before, fingerprint(SimpleNamespace(inner=SimpleNamespace(x=2)))) == ("inner",)


@pytest.mark.parametrize(
    "make", [deque, UserList, lambda items: Rows(*items), lambda items: dict(enumerate(items)).values()]
)
def test_a_container_inside_an_object_is_read(make):
    before = fingerprint(SimpleNamespace(kept=make([1, 2])))
    assert changed_leaves(before, fingerprint(SimpleNamespace(kept=make([1, 2])))) == ()
    assert changed_leaves(before, fingerprint(SimpleNamespace(kept=make([1, 3])))) != ()


def test_a_value_that_holds_itself_is_read_once():
    ring = [zeros()]
    ring.append(ring)
    assert list(fingerprint(ring)) == ["", "[0]", "[1]"]


def test_a_generator_is_not_used_up():
    numbers = iter([1, 2])
    fingerprint({"x": numbers})
    assert list(numbers) == [1, 2]


def test_a_numpy_array_counts_by_form_and_content():
    numpy = pytest.importorskip("numpy")
    array = numpy.arange(6)
    assert changes(array, array.copy()) == ()
    assert changes({"x": array}, {"x": array.reshape(2, 3)}) == ("x",)
    assert changes({"x": array}, {"x": array[::-1]}) == ("x",)


def test_reading_everything_changes_nothing_and_draws_nothing():
    model = net(0.5)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 4)).sum().backward()
    optimizer.step()
    x = torch.randn(4, 4, requires_grad=True)
    loss = (x * 2).sum()
    state = State(model=model, optimizers=optimizer, batch=(x,), outputs=x * 2, loss=loss)
    versions = {name: tensor._version for name, tensor in model.state_dict(keep_vars=True).items()}
    kept, drawn = copy.deepcopy(optimizer.state_dict()), torch.get_rng_state()
    fingerprint_state(state)
    assert {name: tensor._version for name, tensor in model.state_dict(keep_vars=True).items()} == versions
    assert torch.equal(torch.get_rng_state(), drawn) and changes(kept, optimizer.state_dict()) == ()
    loss.backward()
    assert torch.equal(x.grad, torch.full((4, 4), 2.0))


DTYPES = [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.int64, torch.bool]


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


IMAGES, NUMBER, PARAMETER = torch.randn(2, 3, 4, 4), torch.tensor([1 + 2j]), nn.Parameter(zeros())
LOSS = torch.ones(2, requires_grad=True).sum()
SPARSE = torch.sparse_coo_tensor([[0, 2]], [1.0, 2.0], (3,), check_invariants=True)
EQUAL = [
    (IMAGES, IMAGES.contiguous(memory_format=torch.channels_last)),
    (IMAGES[:, ::2], IMAGES[:, ::2].clone()),
    (torch.empty(3, device="meta"), torch.empty(3, device="meta")),
    (torch.empty(0), torch.empty(0)),
    (NUMBER.conj(), torch.tensor([1 - 2j])),
    (NUMBER.conj().imag, torch.tensor([-2.0])),
    (LOSS, LOSS.clone()),
    (SPARSE, SPARSE.clone()),
    (PARAMETER, PARAMETER),
    ({1: "a", 2: "b"}.keys(), {2: "a", 1: "b"}.keys()),
]
OTHERS = [
    (IMAGES.mT, IMAGES),
    (torch.empty(0, 2), torch.empty(0, 3)),
    (torch.zeros(2), torch.zeros(2).int()),
    (torch.zeros(2), torch.zeros(1, 2)),
    (torch.zeros(2), torch.zeros(2, requires_grad=True)),
    (torch.zeros(2), torch.zeros(2, device="meta")),
    (LOSS, LOSS.detach()),  # no gradient flows through it
    (LOSS, LOSS.detach().requires_grad_()),
    (PARAMETER, nn.Parameter(zeros())),
    ({1: "a"}.keys(), {2: "a"}.keys()),
]


@pytest.mark.parametrize(
    ("one", "other", "leaves"),
    [*((*pair, ()) for pair in EQUAL), *((*pair, ("",)) for pair in OTHERS), ([SPARSE], [SPARSE * 2], ("[0].values",))],
)
def test_the_form_counts_and_the_layout_in_memory_does_not(one, other, leaves):
    assert changes(one, other) == leaves


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


@pytest.mark.parametrize(("layout", "leaf"), [(torch.jagged, "_values"), (torch.strided, "[1]")])
def test_nested_tensors_are_read(layout, leaf):
    rows = [torch.ones(2), torch.ones(3)]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The PyTorch API of nested tensors", UserWarning)
        nested = [torch.nested.nested_tensor(r, layout=layout) for r in (rows, rows, [rows[0], 2 * rows[1]])]
    assert (changes(nested[0], nested[1]), changes(nested[0], nested[2])) == ((), (leaf,))


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
