"""A loop of one's own on the seam is the Trainer's: the same events, weights, clock, states, refusals."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from engine_core import Algorithm, AlgorithmMetadata, Callback, Event, Logger, State
from engine_core.errors import ArgumentError, EngineError, UnsupportedError
from engine_core.loop import Loop
from engine_core.needs import EVERYTHING
from engine_core.objective import Objective, check_objective

from .own_loops import DATA, OwnLoop, plugins
from .parts import at, trainer, writing_down


class Position(Callback):
    """Keeps the clock at each event, and what else State shows then."""

    def __init__(self) -> None:
        self.seen: list[Any] = []


def _watch(name: str) -> Any:
    def method(self: Position, state: State, logger: Logger) -> None:
        shown = state.dataloader_label, state.dataloader_len, state.between_batches, state.eval_timestamp[:3]
        loss = None if state.loss is None else round(state.loss.item(), 5)
        self.seen.append((name, *state.timestamp[:5], shown, loss))

    return method


for _event in Event:
    if _event not in (Event.INIT, Event.AFTER_LOAD):
        setattr(Position, _event.value, _watch(_event.value))


def test_a_loop_of_ones_own_is_the_trainers() -> None:
    position, same = Position(), Position()
    own = OwnLoop(plugins(), [position])
    own.fit(2)
    ours = trainer(
        DATA,
        max_duration="2ep",
        algorithms=plugins(),
        callbacks=[same],
        eval_dataloader=DATA,
        seed=1,
        loss_fn=cross_entropy,
    )
    ours.fit()
    assert [seen[0] for seen in position.seen] == [seen[0] for seen in same.seen]
    assert position.seen == same.seen
    assert own.state.metrics == pytest.approx(ours.state.metrics, rel=1e-6)
    for name, value in ours.state.model.state_dict().items():
        assert torch.equal(value, own.model.state_dict()[name])
    for mine, theirs in zip(own.state.algorithms, ours.state.algorithms, strict=True):
        assert str(mine.state_dict()) == str(theirs.state_dict())


def test_all_moments_come_in_order() -> None:
    events: list[str] = []
    own = OwnLoop(callbacks=[writing_down(events)])
    own.fit(1)
    own.loop.close()
    expected: list[str] = []
    trainer(DATA, callbacks=[writing_down(expected)], eval_dataloader=DATA, loss_fn=cross_entropy).fit()
    assert events == expected
    assert set(events) == {event.value for event in Event} - {"after_load"}


@pytest.mark.parametrize("event", ["fit_start", "before_forward", "batch_end"])
def test_the_closure_is_for_after_train_batch(event: str) -> None:
    own = OwnLoop(callbacks=[at(event, lambda state: state.loop.closure())])
    with pytest.raises(EngineError, match="it is for AFTER_TRAIN_BATCH"):
        own.fit(1)
    assert own.state.loop.closure is None


def test_without_a_closure_there_is_none() -> None:
    own, found = OwnLoop(), []
    own.state.callbacks.append(at("fit_start", lambda state: found.append(state.loop.closure)))
    own.loop.fit_start()
    assert found == [None]


def test_a_skipped_step_is_skipped_once() -> None:
    own = OwnLoop(callbacks=[at("after_train_batch", lambda s: s.timestamp.batch == 1 and s.skip_step())])
    steps: list[int] = []
    own.optimizer.register_step_post_hook(lambda *_: steps.append(own.state.timestamp.batch))
    own.fit(1)
    assert steps == [0, 2]


def test_a_step_that_the_loop_makes_all_the_same_is_left_out() -> None:
    own = OwnLoop()
    own.optimizer.param_groups[0].update(momentum=0.9, weight_decay=0.1)
    own.fit(1)
    weight = own.model.weight.detach().clone()
    own.gradients(DATA[0])
    own.state.gradient_norm = torch.ones(())
    own.loop.leave_out_step()
    own.optimizer.step()
    assert torch.equal(own.model.weight, weight) and own.state.gradient_norm is None


def test_where_schedulers_rest_rates_stay_although_the_loop_steps_its_own() -> None:
    def look(state: Any) -> None:
        rates.append(own.optimizer.param_groups[0]["lr"])
        if state.timestamp.batch == 2:
            state.loop.schedulers_paused, own.optimizer.param_groups[0]["lr"] = True, 0.3

    rates: list[float] = []
    own = OwnLoop(callbacks=[at("batch_end", look)])
    scheduler = torch.optim.lr_scheduler.ExponentialLR(own.optimizer, 0.5)
    own.optimizer.register_step_post_hook(lambda *_: scheduler.step())
    own.fit(1)
    assert rates == [0.05, 0.025, 0.3]


def test_a_stop_ends_after_its_batch() -> None:
    own = OwnLoop(callbacks=[at("batch_end", lambda state: state.timestamp.batch == 2 and state.stop_training())])
    own.fit(2)
    assert own.state.timestamp[:3] == (0, 2, 8)
    own.fit(1)
    assert own.state.timestamp[:3] == (1, 3, 10)


def test_the_end_of_an_epoch_counts_once_until_another_starts() -> None:
    events: list[str] = []
    own = OwnLoop(callbacks=[writing_down(events, ["epoch_start", "epoch_end"])])
    loop = own.loop
    loop.fit_start()
    for _ in range(2):
        loop.epoch_start()
        loop.epoch_end()
        loop.epoch_end()
    assert events == ["epoch_start", "epoch_end"] * 2
    assert own.state.timestamp.epoch == 2


def test_schedulers_step_between_the_clock_and_its_event() -> None:
    seen: list[Any] = []
    own = OwnLoop(callbacks=[at(name, lambda state: seen.append("event")) for name in ("batch_end", "epoch_end")])
    own.loop.fit_start()
    own.loop.take(DATA[0])
    own.loop.end_step(lambda before, after: seen.append((before.batch, after.batch)))
    own.loop.epoch_end(lambda before, after: seen.append((before.epoch, after.epoch)))
    assert seen == [(0, 1), "event", (0, 1), "event"]


def test_samples_are_those_of_all_batches_of_a_step_as_loaded() -> None:
    own = OwnLoop(callbacks=[at("after_dataloader", lambda state: setattr(state, "batch", (state.batch[0][:1],)))])
    own.loop.fit_start()
    for batch in DATA:
        own.loop.take(batch)
    own.loop.end_step()
    own.loop.take(DATA[0])
    own.loop.end_step(samples=100)
    assert own.state.timestamp[:3] == (0, 2, 110)


class Swaps(Algorithm):
    """Puts zeros into the model for a while."""

    metadata = AlgorithmMetadata(
        events=[Event.EPOCH_START, Event.EPOCH_END, Event.EVAL_START, Event.EVAL_END], writes=["model"]
    )

    def match(self, event: Event, state: State) -> bool:
        """Run at evaluations."""
        return event.is_eval or event in (Event.EPOCH_START, Event.EPOCH_END)

    def apply(self, event: Event, state: State, logger: Logger) -> None:
        """Put them in, or the weights back."""
        model: Any = state.model
        if event is Event.EVAL_START:
            self.kept = model.weight.detach().clone()
            with torch.no_grad():
                model.weight.zero_()
        elif event is Event.EVAL_END:
            with torch.no_grad():
                model.weight.copy_(self.kept)


def test_an_exception_in_an_evaluation_leaves_model_and_state_as_in_training() -> None:
    def fail(state: State) -> None:
        assert not state.model.weight.any()  # type: ignore[union-attr, operator]
        raise ValueError("boom")

    own = OwnLoop([Swaps()], [at("eval_after_forward", fail)])
    with pytest.raises(ValueError, match="boom"):
        own.fit(1)
    assert own.model.weight.any()
    assert own.state.dataloader_label == "train"
    events: list[str] = []
    own.state.callbacks = [writing_down(events, ["epoch_start"])]
    own.fit(2)
    assert own.state.timestamp.epoch == 2


def test_an_evaluation_can_fail_in_a_fit_that_goes_on() -> None:
    failed: list[str] = []

    def evaluate(state: State) -> None:
        own.loop.eval_start("held", [1])
        error = ValueError("boom")
        assert not own.model.weight.any()
        own.loop.undo_evaluation(error)
        failed.append(f"{state.dataloader_label}, {bool(own.model.weight.any())}, {own.loop.status.phase.name}")

    own = OwnLoop([Swaps()], [at("batch_end", evaluate)])
    own.fit(1)
    assert failed == ["train, True, TRAINING"] * 3
    assert own.loop.engine.undo(ValueError("nothing is left")) == []


def test_who_takes_the_loss_is_named() -> None:
    with pytest.raises(ArgumentError, match=r"^Linear has no loss: give Other\(loss_fn=\.\.\.\), or the model a"):
        check_objective(Objective(), torch.nn.Linear(1, 1), "Other")


def test_an_epoch_that_was_undone_starts_again() -> None:
    own = OwnLoop([Swaps()], [at("before_forward", lambda state: 1 / 0)])
    with pytest.raises(ZeroDivisionError):
        own.fit(1)
    assert own.loop.status.reopens_epoch
    own.loop.epoch_start()
    assert not own.loop.status.reopens_epoch


def test_a_microbatch_is_undone_before_the_whole_batch_is_back() -> None:
    found: list[Any] = []

    class Halves(Algorithm):
        metadata = AlgorithmMetadata(events=[Event.BEFORE_FORWARD, Event.AFTER_FORWARD], writes=["batch"])

        def match(self, event: Event, state: State) -> bool:
            return True

        def apply(self, event: Event, state: State, logger: Logger) -> None:
            found.append((event.value, len(state.batch[0])))

    own = OwnLoop([Halves()])
    own.loop.fit_start()
    own.loop.begin_forward(DATA[2])
    own.loop.undo_microbatch(ValueError())
    assert found == [("before_forward", 2), ("after_forward", 2)]


def test_what_is_not_offered_is_refused_as_soon_as_it_is_known() -> None:
    own = OwnLoop(plugins())
    offers = replace(EVERYTHING, loop="a loop").without("after_train_batch", why="it has none; take one")
    with pytest.raises(
        UnsupportedError, match=r"^Ascends can't work in a loop: no after_train_batch: it has none; take"
    ):
        own.loop.offer(offers)
    with pytest.raises(UnsupportedError):
        Loop(State(algorithms=plugins()), offers)
    own.loop.offer(EVERYTHING)


def test_the_clock_stands_still_in_an_evaluation() -> None:
    own = OwnLoop([], [at("eval_start", lambda _: time.sleep(0.3))])
    began = time.perf_counter()
    own.fit(2)
    assert own.state.timestamp.elapsed_s <= time.perf_counter() - began - 2 * 0.3
    assert own.state.timestamp.epoch == 2


def test_the_former_names_lead_to_the_loop_and_say_so() -> None:
    from engine_core import embed  # noqa: PLC0415

    with pytest.warns(DeprecationWarning, match=r"EmbeddedLoop has moved: import Loop from engine_core\.loop"):
        assert embed.EmbeddedLoop is Loop
    with pytest.raises(AttributeError, match="'Lop'"):
        _ = embed.Lop
