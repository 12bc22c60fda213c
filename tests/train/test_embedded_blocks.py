"""A loop of one's own may be in blocks: a fit, an evaluation; and a step of it may be undone."""

from __future__ import annotations

import pytest
import torch

from engine_core import Algorithm, AlgorithmMetadata, Event, Logger, State
from engine_core.embed import Phase

from .embedded import DATA, Loop


def test_a_step_that_is_undone_counts_nowhere() -> None:
    heard: list[str] = []

    class Halves(Algorithm):
        metadata = AlgorithmMetadata(events=[Event.BATCH_START, Event.BATCH_END, Event.FIT_START, Event.FIT_END])

        def match(self, event: Event, state: State) -> bool:
            return True

        def apply(self, event: Event, state: State, logger: Logger) -> None:
            heard.append(event.value)

    own = Loop([Halves()])
    with own.loop.fitting():
        for batch in DATA[:2]:
            own.loop.take(batch)
            own.loop.begin_step(own.loop.clear_gradients)
            own.gradients(batch)
            if batch is DATA[0]:
                own.state.skip_step()
                own.loop.undo_step(ValueError())
                assert all(p.grad is None for p in own.model.parameters())
        own.loop.end_gradients()
        own.loop.end_step()
    assert own.state.timestamp[:3] == (0, 1, len(DATA[1][0]))
    assert heard == ["fit_start", *["batch_start", "batch_end"] * 2, "fit_end"]


def test_a_fit_and_an_evaluation_are_blocks() -> None:
    own = Loop()
    own.model.eval()
    with pytest.raises(ZeroDivisionError), own.loop.fitting():
        with own.loop.evaluating(own.model, "held") as results:
            assert own.loop.status.phase is Phase.EVALUATING and not torch.is_grad_enabled()
            results["loss"] = torch.tensor(0.5)
        assert own.loop.status.phase is Phase.TRAINING and not own.model.training
        raise ZeroDivisionError
    assert own.state.metrics == {"held/loss": 0.5}
    assert own.loop.status.phase is Phase.IDLE
