"""Values as JSON and tensors, and back: what comes back as it was, what is refused, what can't be smuggled in."""

import json
from collections import Counter, OrderedDict, defaultdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_core.checkpoint import flatten, restore
from engine_core.errors import CheckpointError

from .parts import same

leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
keys = st.text() | st.integers() | st.booleans() | st.none() | st.floats(allow_nan=False)
values = st.recursive(
    leaves | st.builds(torch.tensor, st.lists(st.floats(width=32), max_size=3)),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(keys, inner, max_size=3)
        | st.dictionaries(st.sampled_from(["$", "a", "a.b"]), inner, max_size=3)
        | st.builds(OrderedDict, st.dictionaries(st.text(), inner, max_size=2))
    ),
    max_leaves=12,
)


def through_json(value):
    tensors = {}
    text = json.dumps(flatten(value, "state", tensors), allow_nan=False)
    return restore(json.loads(text), tensors)


def alike(a, b):
    if isinstance(a, dict):
        return type(a) is type(b) and list(a) == list(b) and all(alike(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(alike, a, b))
    return type(a) is type(b) and same(a, b)


@settings(max_examples=50)
@given(values)
def test_a_value_comes_back_as_it_was(value):
    assert alike(through_json(value), value)


def test_counters_default_dicts_keys_with_dots_and_one_tensor_in_two_places_come_back():
    restored = through_json([Counter({30: 2}), defaultdict(dict, {0: {"step": 1}})])
    assert restored == [Counter({30: 2}), {0: {"step": 1}}]
    assert type(restored[0]) is Counter
    weight = torch.ones(2)
    restored = through_json({"a": weight, "b": [weight]})
    assert restored["a"] is restored["b"][0]
    value = {"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}}
    assert alike(through_json(value), value)


def test_a_tensor_keeps_its_order_in_memory_and_a_part_of_one_comes_back_as_its_numbers():
    images, plain = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last), torch.randn(2, 3, 4)
    for tensor in (images, plain.permute(1, 2, 0), plain):
        tensors = {}
        text = json.dumps(flatten(tensor, "state", tensors))
        restored = restore(json.loads(text), {name: value.contiguous() for name, value in tensors.items()})
        assert torch.equal(restored, tensor)
        assert restored.stride() == tensor.stride()
    for part in (torch.arange(12.0).reshape(3, 4)[:, ::2], torch.ones(1).expand(3)):
        assert torch.equal(through_json(part), part)


class Odd:
    """Nothing that a checkpoint holds."""


def endless():
    items = []
    items.append(items)
    return items


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Odd(), r"'state.x' is a .*Odd, and a checkpoint holds None"),
        ({1, 2}, "'state.x' is a builtins.set"),
        (b"bytes", "'state.x' is a builtins.bytes"),
        ({Odd: 1}, "'state.x' has the key .*Odd.*: use string keys"),
        (torch.eye(2).to_sparse(), "'state.x' is a Tensor of layout torch.sparse_coo"),
        (torch.empty(2, device="meta"), "'state.x' is a tensor of meta device"),
        (torch.zeros(1, dtype=torch.complex128), "of dtype torch.complex128"),
        (endless(), "nested deeper than 64, or holds itself"),
    ],
)
def test_what_a_checkpoint_cannot_hold_is_refused_by_its_path(value, message):
    with pytest.raises(CheckpointError, match=message):
        flatten({"x": value}, "state", {})


TENSOR, NUMBER = {"$": "tensor", "name": "row"}, {"$": "number", "is": "nan"}
FORGED = [
    *({**TENSOR, **wrong} for wrong in ({"name": "nowhere"}, {"name": 3}, {"more": 1})),
    *({**TENSOR, "order": order} for order in ([1], [0, 0], [True], "0")),
    *({"$": "dict", "items": items} for items in ([[["a"], 1]], [[{}, 1]], [1], [[1, 2, 3]])),
    *({**NUMBER, **wrong} for wrong in ({"is": "__import__('os')"}, {"more": 1})),
    *({"$": "object", "name": "os.system"}, {"$": "tuple", "items": {}}, {"$": []}, {"$": None}),
]


@pytest.mark.parametrize("json_value", FORGED, ids=str)
def test_what_was_not_flattened_is_not_restored(json_value):
    with pytest.raises(CheckpointError, match="its JSON"):
        restore({"x": [json_value]}, {"row": torch.zeros(3)})


def test_json_that_is_nested_without_end_is_refused():
    with pytest.raises(CheckpointError, match="nested deeper"):
        restore(json.loads("[" * 300 + "]" * 300), {})
