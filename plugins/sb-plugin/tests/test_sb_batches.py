"""Which parts of a batch lose rows, whatever container it is."""

import collections
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sb_plugin import SelectiveBackprop

X, Y = torch.randn(8, 3, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 4
ALWAYS = {"start": 0, "end": 1, "scale_factor": 1, "interrupt": 0}


class OwnLoss(nn.Module):
    """A model with its own loss, fed with whole batches in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return self.linear(batch["x"])

    def loss(self, outputs: Any, batch: Mapping[str, torch.Tensor], reduction: str = "mean") -> torch.Tensor:
        return F.cross_entropy(outputs, batch["y"], reduction=reduction)


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


@dataclass(frozen=True)
class Item:
    x: torch.Tensor
    y: torch.Tensor
    name: str = "kept"


class Encoding(collections.UserDict[str, Any]):
    """As the tokenizers of Hugging Face give."""


@pytest.mark.parametrize(
    ("make", "keys"),
    [
        (lambda *xy: xy, (0, 1)),
        (lambda x, y: [x, y], (0, 1)),
        (Pair, (0, 1)),
        (Pair, ("x", "y")),
        (lambda x, y: {"x": x, "y": y, "ids": list("abcdefgh"), "epoch": 3}, ("x", "y")),
        (lambda x, y: collections.OrderedDict(x=x, y=y), ("x", "y")),
        (lambda x, y: Encoding({"x": x, "y": y}), ("x", "y")),
        (Item, ("x", "y")),
        (lambda x, y: (y, x, torch.zeros(3)), (1, 0)),
        (lambda x, y: {"in": [x, {"more": x}], "y": y}, ((lambda b: b["in"][0], lambda b, v: None), "y")),
    ],
    ids=["tuple", "list", "namedtuple", "attributes", "dict", "ordered", "mapping", "dataclass", "swapped", "nested"],
)
def test_all_tensors_with_a_value_per_row_lose_the_same_rows(
    engine_of: Any, pruned: Any, make: Callable[..., Any], keys: Any
) -> None:
    x = torch.arange(8.0).repeat(3, 1).T
    batch, twin = make(x, torch.arange(8) % 4), make(x, torch.arange(8) % 4)
    engine = engine_of(SelectiveBackprop(**ALWAYS, input_key=keys[0], target_key=keys[1]))
    after = pruned(engine, batch)
    engine.state.batch = after
    kept, targets = engine.state.batch_get_item(keys[0]), engine.state.batch_get_item(keys[1])
    assert type(after) is type(twin)
    assert kept.shape == (4, 3)
    assert (kept[:, 0] % 4).tolist() == targets.tolist()
    assert repr(batch) == repr(twin), "the loader's own batch must not change"


def test_what_has_no_value_per_row_is_left(engine_of: Any, pruned: Any) -> None:
    batch = {"x": X, "y": Y, "epoch": 3, "weights": torch.ones(5), "scalar": torch.tensor(1), "more": [X, {"deep": X}]}
    after = pruned(engine_of(SelectiveBackprop(**ALWAYS, input_key="x", target_key="y")), batch)
    assert [after["epoch"], after["weights"].shape, after["scalar"].item()] == [3, (5,), 1]
    assert torch.equal(after["more"][0], after["x"])
    assert torch.equal(after["more"][1]["deep"], after["x"])


def test_a_model_with_its_own_loss_gets_the_whole_batch(engine_of: Any, pruned: Any) -> None:
    batch = {"x": X, "y": Y, "mask": torch.arange(8)}
    after = pruned(engine_of(SelectiveBackprop(**ALWAYS), model=OwnLoss(), loss_fn=None), batch)
    assert torch.equal(after["x"], X[after["mask"]])
    assert torch.equal(after["y"], Y[after["mask"]])


class OwnLossOfSamples(nn.Module):
    """A model with its own loss, fed with lists of samples."""

    def forward(self, batch: list[Any]) -> torch.Tensor:
        return torch.stack([x.mean() for x, _ in batch])

    def loss(self, outputs: Any, batch: list[Any], reduction: str = "mean") -> torch.Tensor:
        return F.l1_loss(outputs, torch.stack([target["y"].sum() for _, target in batch]), reduction=reduction)


@pytest.mark.parametrize("n", [3, 6, 8])
def test_a_list_of_samples_loses_whole_samples(engine_of: Any, pruned: Any, n: int) -> None:
    """Three is also the number of channels, six that of targets in a sample."""
    batch = [(torch.randn(3, 4, 4), {"y": torch.ones(6)}) for _ in range(n)]
    after = pruned(engine_of(SelectiveBackprop(**ALWAYS), model=OwnLossOfSamples(), loss_fn=None), batch)
    assert len(after) == n // 2
    assert [id(sample) for sample in batch if any(sample is kept for kept in after)] == list(map(id, after))


class OwnImageLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        self.seen.append(batch["x"].shape[2:])
        return batch["x"].flatten(1).mean(1)

    def loss(self, outputs: Any, batch: Any, reduction: str = "mean") -> dict[str, torch.Tensor]:
        return {"a": F.l1_loss(outputs, batch["y"], reduction=reduction), "b": outputs * 0}


@pytest.mark.parametrize("key", ["x", (lambda b: b["x"], lambda b, v: b.__setitem__("x", v))], ids=["key", "setter"])
def test_a_model_with_its_own_loss_scores_the_scaled_input(engine_of: Any, pruned: Any, key: Any) -> None:
    batch = {"x": torch.randn(8, 1, 6, 6), "y": torch.zeros(8)}
    images = batch["x"]
    engine = engine_of(SelectiveBackprop(0, 1, interrupt=0, input_key=key), model=OwnImageLoss(), loss_fn=None)
    after = pruned(engine, batch)
    assert engine.state.model.seen == [(3, 3), (6, 6)]  # the second to compare, and only the first time
    pruned(engine, batch)
    assert engine.state.model.seen == [(3, 3), (6, 6), (3, 3)]
    assert after["x"].shape == (4, 1, 6, 6)
    assert batch["x"] is images
