"""Whatever a batch and a loss are, the kept rows are those that a plain pair keeps; or it says what to write."""

from collections.abc import Mapping
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from engine_core import Batches, Event, Loss, ModelLoss, Objective
from sb_plugin import SelectiveBackprop

X, Y = torch.randn(8, 3, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 4
ALWAYS = {"start": 0, "end": 1, "scale_factor": 1, "interrupt": 0}
CE, KEYS = F.cross_entropy, {"input_key": "x", "target_key": "y"}


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


class Graphs:
    """A batch of an unknown kind."""

    def __init__(self, x, y):
        self.x, self.y = x, y


OF_ITS_OWN = Batches(count=lambda batch: len(batch.x), take=lambda batch, rows: Graphs(batch.x[rows], batch.y[rows]))


class Taking(nn.Module):
    """Calls a linear layer with what a function takes out of its arguments."""

    def __init__(self, take):
        super().__init__()
        torch.manual_seed(3)
        self.linear, self.take = nn.Linear(3, 4), take

    def forward(self, *batch, **named):
        return self.linear(self.take(*batch, **named))


class OwnLoss(Taking):
    """With its own loss, fed with whole batches."""

    def __init__(self, take, target):
        super().__init__(take)
        self.target = target

    def loss(self, outputs, batch, reduction="mean"):
        return F.cross_entropy(outputs, self.target(batch), reduction=reduction)


class Whole(Objective):
    """An objective of one's own."""

    def forward(self, model, batch):
        return model(batch["x"])

    def loss(self, model, outputs, batch):
        return Loss(F.cross_entropy(outputs, batch["y"], reduction="sum"), len(outputs))

    def row_losses(self, model, outputs, batch):
        return F.cross_entropy(outputs, batch["y"], reduction="none")


class Wrong(Whole):
    def row_losses(self, model, outputs, batch):
        return outputs


def parts(outputs, targets, reduction="mean"):
    accuracy = (outputs.argmax(1) == targets).float() * 100
    found = {"ce": F.cross_entropy(outputs, targets, reduction="none"), "accuracy": accuracy}
    return found if reduction == "none" else {name: part.mean() for name, part in found.items()}


def as_dict(x, y):
    return {"x": x, "y": y, "ids": list("abcdefgh"), "epoch": 3, "more": {"deep": x, "name": "kept"}}


NAMED = Objective(CE, inputs="x", targets="y")
BY_NAME = (lambda batch: batch["x"]), (lambda batch: batch["y"])
FORMS = {
    "list": (lambda x, y: [x, y], {}, {}),
    "attributes": (Pair, {}, KEYS),
    "dict": (as_dict, {"objective": NAMED}, {}),
    "keys": (as_dict, {}, KEYS),  # of a loop of the user's own, which has no objective
    "nested": (lambda x, y: {"in": {"x": x}, "y": y}, {}, {**KEYS, "input_key": (lambda b: b["in"]["x"], print)}),
    "several inputs": (
        lambda x, y: (x[:, :1], x[:, 1:], y),
        {"objective": Objective(CE, inputs=(0, 1), targets=2), "model": Taking(lambda a, b: torch.cat([a, b], 1))},
        {},
    ),
    "own loss": (as_dict, {"model": OwnLoss(*BY_NAME), "loss_fn": None}, {}),
    "own objective": (as_dict, {"objective": Whole()}, {}),
    "parts": (lambda x, y: (x, y), {"loss_fn": parts}, {}),
    "shared": (
        lambda x, y: {"x": x, "y": y, "t": torch.ones(1)},
        {"objective": NAMED, "batches": Batches(shared=("t",))},
        {},
    ),
    "rows in another dimension": (
        lambda x, y: {"x": x.T, "y": y},
        {"objective": NAMED, "model": Taking(lambda x: x.T), "batches": Batches(dim={"x": 1})},
        {},
    ),
    "per row": (
        lambda x, y: {"x": list(x), "y": y},
        {"objective": NAMED, "model": Taking(torch.stack), "batches": Batches(per_row=("x",))},
        {},
    ),
    "samples": (
        lambda x, y: [{"x": row, "y": int(target)} for row, target in zip(x, y, strict=True)],
        {
            "model": OwnLoss(
                lambda batch: torch.stack([one["x"] for one in batch]),
                lambda batch: torch.tensor([one["y"] for one in batch]),
            ),
            "loss_fn": None,
            "batches": Batches(samples=True),
        },
        {},
    ),
    "a type of its own": (Graphs, {"objective": NAMED, "batches": OF_ITS_OWN}, {}),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scorer", ["forward", "uniform"])
def test_the_kept_rows_are_those_of_a_plain_pair(engine_of, pruned, form, scorer):
    make, fields, given = FORMS[form]
    arguments = {**ALWAYS, "selector": "uniform"} if scorer == "uniform" else ALWAYS
    plain = pruned(engine_of(SelectiveBackprop(**arguments), model=Taking(lambda x: x)))
    model = fields.get("model", Taking(lambda x: x))
    said = {"loss_fn": None} if "objective" in fields else {}
    batch, twin = make(X, Y), make(X, Y)
    after = pruned(engine_of(SelectiveBackprop(**arguments, **given), **{**said, **fields, "model": model}), batch)
    expected = make(*plain)
    assert type(after) is type(twin)
    if form == "a type of its own":
        after, expected, batch, twin = ((each.x, each.y) for each in (after, expected, batch, twin))
    if isinstance(after, Mapping) and "ids" in after:
        assert after["ids"] == ["abcdefgh"[row] for row in (X[:, None] == plain[0]).all(2).any(1).nonzero()[:, 0]]
        after = {**after, "ids": expected["ids"]}
    assert repr(after) == repr(expected)
    assert repr(batch if isinstance(batch, tuple) else vars(batch) if hasattr(batch, "__dict__") else batch) == repr(
        twin if isinstance(twin, tuple) else vars(twin) if hasattr(twin, "__dict__") else twin
    ), "the loader's own batch must not change"


@pytest.mark.parametrize(
    ("fields", "given", "message"),
    [
        ({"objective": Wrong(), "batch": as_dict(X, Y)}, {}, r"Wrong.row_losses gave shape \(8, 4\), not \(8,\)"),
        ({"objective": ModelLoss()}, {}, r"ModelLoss.loss gives one loss for all rows"),
        ({"loss_fn": lambda outputs, targets: Loss(outputs.sum(), 8)}, {}, "takes no `reduction`"),
        ({"batch": {"x": X, "t": torch.ones(1)}}, {}, r"Batches\(shared=\('t',\)\)"),
        ({"batch": [(x, y) for x, y in zip(X, Y, strict=True)]}, {}, r"Batches\(samples=True\)"),
        ({"batch": Graphs(X, Y)}, {}, r"Batches\(count=..., take=...\)"),
        ({"batch": Graphs(X, Y), "batches": Batches(count=lambda batch: 8)}, {}, "in no tensor or list"),
        ({"objective": NAMED, "batch": as_dict(X, Y)}, {"log_by": "class"}, "target_key=1: .* set target_key"),
        (
            {"objective": NAMED, "batch": as_dict(X, Y)},
            {"target_key": "x"},
            "'x' is not item 'y' .* set target_key='y'",
        ),
        ({"batch": (X, Y, X + 1)}, {"input_key": 2}, r"input_key=2 is not item 0 .*Objective\(loss_fn, inputs=2\)"),
        ({"objective": Objective(CE, inputs=1, targets=0), "batch": (Y, X)}, {"scale_factor": 0.5}, "0 is not item 1"),
    ],
)
def test_what_can_not_be_right_is_refused_at_the_first_batch(engine_of, fields, given, message):
    said = {"loss_fn": None} if "objective" in fields else {}
    engine = engine_of(SelectiveBackprop(**{**ALWAYS, **given}), **{**said, **fields})
    with pytest.raises((ValueError, TypeError, LookupError), match=message):
        engine.run_event(Event.AFTER_DATALOADER)


class OwnImageLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, batch):
        self.seen.append(batch["x"].shape[2:])
        return batch["x"].flatten(1).mean(1)

    def loss(self, outputs, batch, reduction="mean"):
        return {"a": F.l1_loss(outputs, batch["y"], reduction=reduction), "b": outputs * 0}


@pytest.mark.parametrize("key", ["x", (lambda b: b["x"], lambda b, v: b.__setitem__("x", v))], ids=["key", "setter"])
def test_a_model_with_its_own_loss_scores_the_scaled_input(engine_of, pruned, key):
    batch = {"x": torch.randn(8, 1, 6, 6), "y": torch.zeros(8)}
    images = batch["x"]
    engine = engine_of(SelectiveBackprop(0, 1, interrupt=0, input_key=key), model=OwnImageLoss(), loss_fn=None)
    after = pruned(engine, batch)
    assert engine.state.model.seen == [(3, 3), (6, 6)]  # the second to compare, and only the first time
    pruned(engine, batch)
    assert engine.state.model.seen == [(3, 3), (6, 6), (3, 3)]
    assert after["x"].shape == (4, 1, 6, 6)
    assert batch["x"] is images
