"""What a trainer's checkpoint holds of a loop on the seam: kept, given back, refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine_core.errors import CheckpointError
from engine_core.loop import read_state, write_state

from .own_loops import OwnLoop, plugins
from .parts import at


@pytest.mark.parametrize("stops_at", [2, 3])
def test_a_resumed_loop_is_the_uninterrupted_one(stops_at: int) -> None:
    whole = OwnLoop(plugins())
    whole.fit(2)
    first = OwnLoop(plugins(), [at("batch_checkpoint", lambda s: s.timestamp.batch == stops_at and 1 / 0)])
    with pytest.raises(ZeroDivisionError):
        first.fit(2)
    saved, weights = first.loop.state_dict(), first.model.state_dict()
    loaded: list[int] = []
    second = OwnLoop(plugins(), [at("after_load", lambda state: loaded.append(state.timestamp.batch))])
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
        ({"required": ["Blur", "Squeeze"]}, r"was saved with Blur, .*; the checkpoint was saved with Squeeze, "),
    ],
)
def test_a_state_of_another_run_is_refused_at_once(changes: dict[str, Any], says: str) -> None:
    own = OwnLoop(plugins())
    with pytest.raises(CheckpointError, match=says):
        own.loop.load_state_dict({**own.loop.state_dict(), **changes})
    own.fit(1)
    assert own.state.timestamp.epoch == 1


def test_the_seed_that_was_saved_holds() -> None:
    saved, other = OwnLoop(plugins()).loop.state_dict(), OwnLoop(plugins())
    other.state.seed = 99
    other.loop.load_state_dict(saved)
    assert other.state.seed == 1


def test_what_was_loaded_for_a_fit_that_failed_to_start_is_not_for_the_next() -> None:
    own = OwnLoop(plugins())
    own.fit(1)
    saved, loaded = own.loop.state_dict(), OwnLoop(plugins())
    loaded.loop.load_state_dict(saved)
    loaded.loop.undo(OSError())
    loaded.loop.fit_start()
    assert loaded.state.timestamp.batch == 0


def test_it_is_written_to_two_files_and_read_back(tmp_path: Path) -> None:
    own = OwnLoop(plugins())
    own.fit(1)
    saved = own.loop.state_dict()
    write_state(tmp_path, saved)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["engine_core.json", "engine_core.safetensors"]
    assert str(read_state(tmp_path)) == str(saved)

    (tmp_path / "engine_core.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"engine_core.json' is damaged, it is not JSON"):
        read_state(tmp_path)
    (tmp_path / "engine_core.json").write_text("null")
    with pytest.raises(CheckpointError, match=r"engine_core.json' is damaged: it holds None, and not an object"):
        read_state(tmp_path)
    (tmp_path / "engine_core.json").unlink()
    with pytest.raises(CheckpointError, match="was saved without engine-core, or holds weights alone"):
        read_state(tmp_path)
