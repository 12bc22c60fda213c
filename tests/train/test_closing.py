"""Closing what never ran, and refusing to copy what runs."""

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest

from engine_core import Engine, Logger, State
from engine_core.errors import EngineError
from engine_core.registry import Registry

from .parts import trainer

ARGUMENTS: dict[str, dict[str, Any]] = {
    "checkpoint_saver": {"folder": "checkpoints"},
    "threshold_stopper": {"metric": "eval/loss", "threshold": 1.0},
    "time_limit": {"limit": "1h"},
    "run_files": {"folder": "run"},
}
OURS = ("engine-core", "engine-core-author")
OWN = [r.name for r in Registry.scan().records if r.kind == "callbacks" and r.distribution in OURS]


@pytest.mark.parametrize("name", OWN)
def test_own_callbacks_and_loggers_can_be_closed_before_any_event(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    callback = Registry.scan().load("callbacks", name)(**ARGUMENTS.get(name, {}))
    is_logger = hasattr(callback, "log_metrics")
    Engine(State(callbacks=[] if is_logger else [callback]), Logger([callback] if is_logger else [])).close()
    assert caplog.records == []


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_trainer_can_not_be_copied_and_the_message_says_what_can(copied: Any) -> None:
    with (
        trainer() as made,
        pytest.raises(EngineError, match=r"^Trainer can't be copied or pickled, .*state_dict\(\), .*checkpoints"),
    ):
        copied(made)
