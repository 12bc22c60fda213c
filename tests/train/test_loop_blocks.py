"""A loop of one's own may be in blocks: a fit, an evaluation; and a step of it may be undone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine_core import Algorithm, AlgorithmMetadata, Event, Logger, State
from engine_core.loop import Phase

from .own_loops import DATA, OwnLoop


def test_a_step_that_is_undone_counts_nowhere() -> None:
    heard: list[str] = []

    class Halves(Algorithm):
        metadata = AlgorithmMetadata(events=[Event.BATCH_START, Event.BATCH_END, Event.FIT_START, Event.FIT_END])

        def match(self, event: Event, state: State) -> bool:
            return True

        def apply(self, event: Event, state: State, logger: Logger) -> None:
            heard.append(event.value)

    own = OwnLoop([Halves()])
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
    own = OwnLoop()
    own.model.eval()
    with pytest.raises(ZeroDivisionError), own.loop.fitting():
        with own.loop.evaluating(own.model, "held") as results:
            assert own.loop.status.phase is Phase.EVALUATING and not torch.is_grad_enabled()
            results["loss"] = torch.tensor(0.5)
        assert own.loop.status.phase is Phase.TRAINING and not own.model.training
        raise ZeroDivisionError
    assert own.state.metrics == {"held/loss": 0.5}
    assert own.loop.status.phase is Phase.IDLE


class Swaps(Algorithm):
    """Has other weights in an evaluation, and notes what State shows when it puts the own ones back."""

    metadata = AlgorithmMetadata(events=[Event.EVAL_START, Event.EVAL_END], writes=["model"])

    def __init__(self) -> None:
        self.seen: list[str | None] = []

    def match(self, event: Event, state: State) -> bool:
        return True

    def apply(self, event: Event, state: State, logger: Logger) -> None:
        model: Any = state.model
        model.weight.neg_()  # raises where gradients are recorded
        self.seen += [state.dataloader_label] * (event is Event.EVAL_END)


def test_several_evaluations_in_a_block_leave_no_trace() -> None:
    own = OwnLoop([swaps := Swaps()])
    loop, state = own.loop, own.state
    state.batch, weight = DATA[0], own.model.weight.clone()
    before = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), loop.evaluations(device=torch.device("cpu")) as outside:
        for label in ("a", "b"):
            loop.eval_start(label, DATA)
            torch.rand(())
            loop.eval_batch(DATA[1])
            assert not (own.model.training or torch.is_grad_enabled() or torch.equal(own.model.weight, weight))
            with outside():
                assert torch.is_grad_enabled() and torch.equal(torch.get_rng_state(), before)
            if label == "b":
                raise ZeroDivisionError
            loop.eval_end({})
    assert own.model.training and torch.is_grad_enabled() and torch.equal(torch.get_rng_state(), before)
    assert (swaps.seen, state.batch is DATA[0], state.dataloader_label) == (["a", "b"], True, None)
    assert torch.equal(own.model.weight, weight) and loop.status.phase is Phase.IDLE


def test_where_the_end_of_an_evaluation_fails_its_state_is_there_until_it_is_undone() -> None:
    class Fails(Algorithm):
        metadata = AlgorithmMetadata(events=[Event.EVAL_END])

        def match(self, event: Event, state: State) -> bool:
            raise ZeroDivisionError

        def apply(self, event: Event, state: State, logger: Logger) -> None: ...

    own = OwnLoop([Fails(), swaps := Swaps()])
    with pytest.raises(ZeroDivisionError), own.loop.evaluating(own.model, "held"):
        pass
    assert (swaps.seen, own.state.dataloader_label) == (["held"], None)
