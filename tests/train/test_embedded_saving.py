"""What a trainer's checkpoint holds of a loop on the seam: kept, given back, refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine_core.errors import CheckpointError

from .embedded import Loop, plugins
from .parts import at


@pytest.mark.parametrize("stops_at", [2, 3])
def test_a_resumed_loop_is_the_uninterrupted_one(stops_at: int) -> None:
    whole = Loop(plugins())
    whole.fit(2)
    first = Loop(plugins(), [at("batch_checkpoint", lambda s: s.timestamp.batch == stops_at and 1 / 0)])
    with pytest.raises(ZeroDivisionError):
        first.fit(2)
    saved, weights = first.loop.state_dict(), first.model.state_dict()
    loaded: list[int] = []
    second = Loop(plugins(), [at("after_load", lambda state: loaded.append(state.timestamp.batch))])
    second.model.load_state_dict(weights)
    second.loop.load_state_dict(saved)
    assert second.state.timestamp.batch == 0
    assert second.loop.state_dict() == saved
    second.fit(2)
    assert loaded == [stops_at]
    assert second.state.timestamp[:3] == whole.state.timestamp[:3]
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name])
    assert str(second.state.algorithms[0].state_dict()) == str(whole.state.algorithms[0].state_dict())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"format": 2}, r"has format 2, and this version reads up to 1"),
        ({"format": "x"}, r"has format 'x'"),
        ({"algorithms": {"Blur": {}}}, r"was saved with Blur, and this run does not have it"),
        ({"required": ["Blur", "Squeeze"]}, r"was saved with Blur and Squeeze"),
    ],
)
def test_a_state_of_another_run_is_refused_at_once(changes: dict[str, Any], says: str) -> None:
    own = Loop(plugins())
    with pytest.raises(CheckpointError, match=says):
        own.loop.load_state_dict({**own.loop.state_dict(), **changes})
    own.fit(1)
    assert own.state.timestamp.epoch == 1
