"""Every algorithm of this repository can be applied without a logger, as in a loop of one's own."""

from typing import Any

import pytest

from engine_core_author import RecordingDestination

from .conftest import NAMES, make, trainer_of


@pytest.mark.parametrize("name", NAMES)
def test_apply_needs_no_logger_and_then_logs_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm: Any = make(name)
    cls, apply, applied = type(algorithm), type(algorithm).apply, []

    def without(self: Any, event: Any, state: Any, logger: Any) -> Any:
        applied.append(event)
        return apply(self, event, state)

    monkeypatch.setattr(cls, "apply", without)
    destination = RecordingDestination()
    with trainer_of([algorithm], loggers=[destination]) as trainer:
        trainer.fit()
    assert applied
    assert {metric.partition("/")[0] for _, metrics in destination.metrics for metric in metrics} == {"train", "eval"}
