"""The dry look at the first batch: what can't work is refused before the training, not halfway through it."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from engine_core import Event
from sb_plugin import SelectiveBackprop

X, Y = torch.randn(8, 3, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 4
ALWAYS = {"start": 0, "end": 1, "scale_factor": 1, "interrupt": 0}


class Untouchable(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("no scoring forward here")


def no_reduction(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(outputs, targets)


IMAGES = torch.randn(8, 1, 4, 4, generator=torch.Generator().manual_seed(2))  # the ids of tests name them
REFUSED = [
    ({}, {"batch": (X, Y)}, ValueError, r"dimensions, but these have 2 \(shape \(8, 3\)\): set scale_factor=1"),
    ({}, {"batch": ({"a": X}, Y)}, ValueError, "scale_factor scales one tensor, but the input is a dict: set it to 1"),
    ({}, {"batch": {"x": IMAGES, "y": Y}}, LookupError, "input_key=0: .*dict has no item 0.*known: x, y; set"),
    ({"target_key": 2}, {"batch": (IMAGES, Y)}, LookupError, "target_key=2: .*2 items has no item 2; set target_key"),
    ({}, {"batch": (IMAGES, Y[:7])}, ValueError, "has 7 rows and .* has 8"),
    ({"selector": "uniform", "scale_factor": 1}, {"batch": (X, Y[:7])}, ValueError, "has 7 rows and .* has 8"),
    ({}, {"batch": (IMAGES[:0], Y[:0])}, ValueError, "the first batch has no rows to choose from: leave empty batches"),
    ({}, {"batch": (IMAGES, Y), "loss_fn": no_reduction}, TypeError, "no_reduction takes no `reduction`"),
    ({}, {"batch": (IMAGES, Y), "loss_fn": None}, ValueError, "Linear has no loss: give"),
    ({}, {"batch": (IMAGES, Y), "max_duration": None}, ValueError, r"max_duration is not known.*start=0\.5.*start=0"),
]


@pytest.mark.parametrize(("arguments", "fields", "error", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_the_first_batch_is_refused_long_before_start(
    engine_of: Any, arguments: dict[str, Any], fields: dict[str, Any], error: type[Exception], message: str
) -> None:
    engine = engine_of(SelectiveBackprop(**arguments), **{"max_duration": "100ba", **fields})
    with pytest.raises(error, match=message) as caught:
        engine.run_event(Event.AFTER_DATALOADER)
    assert "validate of algorithm SelectiveBackprop" in "".join(caught.value.__notes__)


def test_the_dry_look_runs_nothing_and_changes_nothing(engine_of: Any, pruned: Any) -> None:
    batch = (IMAGES, Y)
    engine = engine_of(SelectiveBackprop(), model=Untouchable(), max_duration="100ba")
    assert pruned(engine, batch) is batch


def test_with_keep_1_nothing_is_asked_of_loss_and_batch(engine_of: Any, pruned: Any) -> None:
    assert pruned(engine_of(SelectiveBackprop(keep=1), loss_fn=None, model=Untouchable()), batch := ["a"]) is batch


def test_a_net_of_fixed_input_size_warns_once_and_continues_at_full_size(engine_of: Any, pruned: Any) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 4))
    engine = engine_of(SelectiveBackprop(0, 1, interrupt=0), model=model)
    with pytest.warns(UserWarning, match=r"scale_factor=0\.5") as caught:
        sizes = [len(pruned(engine, (IMAGES, Y))[0]) for _ in range(3)]
    assert (len(caught), sizes) == (1, [4, 4, 4])


def test_buffers_without_values_yet_can_not_be_held_and_the_message_says_what_to_do(engine_of: Any) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LazyBatchNorm1d())
    engine = engine_of(SelectiveBackprop(**ALWAYS), model=model, batch=(X, Y), loss_fn=F.cross_entropy)
    with pytest.raises(
        ValueError, match=r"buffers of a LazyBatchNorm1d have no values before its first forward.*run the"
    ):
        engine.run_event(Event.AFTER_DATALOADER)
    model(X)
    engine.run_event(Event.AFTER_DATALOADER)
    assert len(engine.state.batch[0]) == 4
