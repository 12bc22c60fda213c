"""Convert values to JSON plus tensors and back, for all of a checkpoint but the model. Runs no stored code."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Mapping, MutableMapping
from typing import Any

import torch

from ..errors import CheckpointError
from .tensor_file import StoredTensor, TensorSlice

_MAX_DEPTH = 64
_TAG = "$"
"""A JSON object with this key is not a user's dict, but a value that JSON can't represent."""

_KINDS: dict[str, type[dict[Any, Any]]] = {"dict": dict, "ordered": OrderedDict, "counter": Counter}
_NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def flatten(value: Any, path: str, tensors: MutableMapping[str, Any]) -> Any:
    """Return a value as JSON, and put its tensors into `tensors`, under their paths, which begin with `path`.

    None, booleans, numbers, strings, tensors, and lists, tuples and dicts of them come back unchanged; so do the
    mappings of torch's schedulers. The tensors are not copies: clone them to keep them. A `TensorSlice` takes the place
    of a tensor of which a process holds a part; it gets the same name in every process whose value has the same shape.

    Raises:
        CheckpointError: for anything else, with its path.

    Example:
        >>> tensors = {}
        >>> flatten({"step": 3, "average": torch.ones(2)}, "noise", tensors)
        {'step': 3, 'average': {'$': 'tensor', 'name': 'noise.average'}}
        >>> tensors
        {'noise.average': tensor([1., 1.])}
    """
    return _Flattener(tensors).flatten(value, path, 0)


def restore(json: Any, tensors: Mapping[str, torch.Tensor | StoredTensor]) -> Any:
    """Return the value that `flatten` was given; each tensor comes once, or as it is stored, if it is still in files.

    Raises:
        CheckpointError: for JSON that `flatten` can't have made.

    Example:
        >>> restore({"step": 3, "average": {"$": "tensor", "name": "noise.average"}}, {"noise.average": torch.ones(2)})
        {'step': 3, 'average': tensor([1., 1.])}
    """
    return _restore(json, tensors, 0)


def check_tensor(tensor: torch.Tensor, path: str) -> None:
    """Raise if a tensor can't be saved: if it is sparse, quantized, sharded or without data."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
        kind = f"{type(tensor).__qualname__} of layout {tensor.layout}"
        raise CheckpointError(f"{path!r} is a {kind}, which a checkpoint can't hold: give a plain tensor")
    if tensor.is_meta or tensor.is_quantized or tensor.dtype is torch.complex128:
        kind = "meta device" if tensor.is_meta else f"dtype {tensor.dtype}"
        raise CheckpointError(f"{path!r} is a tensor of {kind}, which a checkpoint can't hold")


def check_weight(name: str, value: Any) -> None:
    """Raise for a tensor of a model that could be saved, and not be loaded again, since its elements share memory."""
    tensor = value.tensor if isinstance(value, TensorSlice) else value
    if isinstance(tensor, torch.Tensor) and 0 in [
        step for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1
    ]:
        raise CheckpointError(
            f"the model's {name!r} is an expanded tensor, which can be saved and not be loaded, since its elements "
            "share memory: register expanded.clone()"
        )


class _Flattener:
    """One walk; a tensor that occurs twice gets one name."""

    def __init__(self, tensors: MutableMapping[str, Any]) -> None:
        self._tensors = tensors
        self._named: dict[int, dict[str, Any]] = {}

    def flatten(self, value: Any, path: str, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise CheckpointError(f"{path!r} is nested deeper than {_MAX_DEPTH}, or holds itself")
        if value is None or type(value) in (bool, int, str):
            return value
        if isinstance(value, float):  # NumPy's double is one
            number = float(value)
            return number if math.isfinite(number) else {_TAG: "number", "is": str(number)}
        if isinstance(value, (torch.Tensor, TensorSlice)):
            return self._tensor(value, path)
        if type(value) in (list, tuple):
            items = [self.flatten(item, _joined(path, place), depth + 1) for place, item in enumerate(value)]
            return items if type(value) is list else {_TAG: "tuple", "items": items}
        if type(value) in (*_KINDS.values(), defaultdict):
            return self._dict(value, path, depth)
        raise CheckpointError(
            f"{path!r} is a {type(value).__module__}.{type(value).__qualname__}, and a checkpoint holds None, "
            "booleans, numbers, strings, tensors, and lists, tuples and dicts of these: return only these from "
            "state_dict()"
        )

    def _dict(self, value: dict[Any, Any], path: str, depth: int) -> Any:
        if type(value) in (dict, defaultdict) and all(type(key) is str for key in value) and _TAG not in value:
            return {key: self.flatten(item, _joined(path, key), depth + 1) for key, item in value.items()}
        if unusual := [key for key in value if not isinstance(key, (str, int, float, tuple, type(None)))]:
            kind = type(unusual[0]).__qualname__
            raise CheckpointError(f"{path!r} has the key {unusual[0]!r}, a {kind}: use string keys")
        kind = next((name for name, cls in _KINDS.items() if type(value) is cls), "dict")
        pairs = [
            [self.flatten(key, _joined(path, "key"), depth + 1), self.flatten(item, _joined(path, key), depth + 1)]
            for key, item in value.items()
        ]
        return {_TAG: kind, "items": pairs}

    def _tensor(self, value: torch.Tensor | TensorSlice, path: str) -> dict[str, Any]:
        tensor = value.tensor if isinstance(value, TensorSlice) else value
        check_tensor(tensor, path)
        if id(tensor) in self._named:
            return self._named[id(tensor)]
        name = path
        while name in self._tensors:  # a key with a dot in it may look like two
            name += "_"
        self._tensors[name] = (
            value._replace(tensor=tensor.detach()) if isinstance(value, TensorSlice) else tensor.detach()
        )
        reference: dict[str, Any] = {_TAG: "tensor", "name": name}
        self._named[id(tensor)] = reference
        if not tensor.is_contiguous() and tensor.numel():
            reference["order"] = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
        return reference


def _joined(path: str, key: object) -> str:
    return f"{path}.{key}" if path else f"{key}"


def _restore(json: Any, tensors: Mapping[str, torch.Tensor | StoredTensor], depth: int) -> Any:  # noqa: PLR0911  a case each
    if depth > 2 * _MAX_DEPTH:
        raise CheckpointError(f"its JSON is nested deeper than {2 * _MAX_DEPTH}")
    if isinstance(json, list):
        return [_restore(item, tensors, depth + 1) for item in json]
    if not isinstance(json, dict):
        return json
    if _TAG not in json:
        return {key: _restore(item, tensors, depth + 1) for key, item in json.items()}
    match json:
        case {"$": "number", "is": str(name)} if name in _NUMBERS and len(json) == 2:
            return _NUMBERS[name]
        case {"$": "tuple", "items": list(items)} if len(json) == 2:
            return tuple(_restore(item, tensors, depth + 1) for item in items)
        case {"$": "tensor", "name": str(name), **rest} if not rest.keys() - {"order"}:
            return _tensor(name, tensors, rest.get("order"))
        case {"$": str(kind), "items": list(pairs)} if kind in _KINDS and len(json) == 2:
            return _pairs(kind, pairs, tensors, depth)
    raise CheckpointError(f"its JSON has {json!r:.80}, which no checkpoint has")


def _pairs(kind: str, pairs: list[Any], tensors: Mapping[str, torch.Tensor | StoredTensor], depth: int) -> Any:
    restored = {}
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2:
            raise CheckpointError(f"its JSON has {pair!r:.80} where a key and a value have to be")
        key = _restore(pair[0], tensors, depth + 1)
        try:
            restored[key] = _restore(pair[1], tensors, depth + 1)
        except TypeError:
            raise CheckpointError(f"its JSON has the key {pair[0]!r:.80}, which can't be one") from None
    return _KINDS[kind](restored)


def _tensor(name: str, tensors: Mapping[str, torch.Tensor | StoredTensor], order: Any) -> torch.Tensor | StoredTensor:
    """Return a tensor with its original memory order of dimensions; files store all tensors in one order."""
    if name not in tensors:
        raise CheckpointError(f"its JSON names the tensor {name!r:.80}, which is in no file")
    tensor = tensors[name]
    if order is None:
        return tensor
    if isinstance(tensor, StoredTensor):
        tensor = tensor.read()
    dimensions = list(range(tensor.dim()))
    if not isinstance(order, list) or sorted(order, key=str) != sorted(dimensions, key=str):
        raise CheckpointError(f"its JSON gives {name!r:.80} the order {order!r:.80}, which is none of its dimensions")
    return tensor.permute(order).contiguous().permute([order.index(place) for place in dimensions])
