"""The training loop, from `fit` down to the microbatch: the only file that fires training events."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

from ..batch import count_rows, move_batch
from ..errors import EngineError
from ..event import Event
from ..state import State
from ..time import FIELD_OF, Interval, Time, Timestamp
from .data import blame_what_was_loaded, enter_loader, lose_no_batch
from .interruption import EvaluationInterrupted, interruptible, raise_if_interrupted
from .microbatches import split_with_shares
from .objective import compute_loss, compute_outputs, reduce_loss
from .optimizers import pass_for_stepped
from .out_of_memory import explain_out_of_memory, place_in_training
from .resume import go_back, take_snapshot
from .session import Session

__all__ = ["run_fit"]

OF_A_MICROBATCH = (Event.BEFORE_FORWARD, Event.BEFORE_LOSS, Event.BEFORE_BACKWARD)


def run_fit(session: Session, end: Time) -> None:
    """Train until the clock of `session.state` reaches `end`, or somebody asks to stop."""
    if session.is_fitting:
        raise EngineError("fit runs already: it can't be called from one of its own events")
    state, engine, device = session.state, session.engine, session.device
    fire = engine.run_event
    scaler = session.precision.scaler
    outputs_of, loss_of = session.precision.wrap(compute_outputs), session.precision.wrap(compute_loss)
    at_end = end_test(state, end, "duration")
    counts_batches = not all(i.in_epochs for i in (session.eval_interval, *(i for _, i in session.schedulers)))
    moves = device.type != "cpu"
    microbatch_size, grad_clip_norm, read = session.microbatch_size, session.grad_clip_norm, session.readings.take
    session.counted_s = time.perf_counter()

    def fit() -> None:
        """Run epochs until the end, and evaluate once more if the last interval is not complete."""
        enter_loader(state)
        fire("fit_start")
        if (awaited := session.awaited) is not None:
            evaluate(awaited)
            checkpoint(awaited)
        while not at_end() or is_epoch_over():
            epoch()
        if not state.pause_requested:
            evaluate("batch_checkpoint")
            if session.awaited is not None:
                checkpoint(session.awaited)
        fire("fit_end")
        raise_if_interrupted(state)

    def is_epoch_over() -> bool:
        """Has the run been saved after the last batch of an epoch, whose end is still to come?"""
        return session.batches is not None and state.timestamp.batch_in_epoch == state.dataloader_len

    def epoch() -> None:
        """Run the batches of one epoch, or those that an earlier fit has left of it."""
        if session.batches is not None and at_end():  # saved after its last batch, and loaded
            end_epoch()
            return
        if session.batches is None or session.begins_anew:
            fire("epoch_start")
            session.begins_anew = False
        if session.batches is None:
            try:
                session.batches = session.feed.start_epoch()
            except BaseException as error:
                lose_no_batch(session, error, checkpoint)
                raise
        while True:
            fire("before_dataloader")
            try:
                state.batch = next(session.batches)
            except StopIteration:
                engine.run_marker_only_event("after_dataloader")
                break
            except BaseException as error:
                lose_no_batch(session, error, checkpoint)
                raise
            batch()
            if at_end():
                if state.timestamp.batch_in_epoch == state.dataloader_len:
                    break
                return
        end_epoch()

    def batch() -> None:
        """Train on one batch, from the loader to the checkpoint."""
        samples = count_rows(state.batch)
        try:
            if moves:
                state.batch = move_batch(state.batch, device)
            fire("after_dataloader")
            fire("batch_start")
            train_batch()
        except Exception as error:
            explain_out_of_memory(error, state, *place_in_training(state, samples, microbatch_size))
            raise
        before = state.timestamp
        now_s = time.perf_counter()
        state.timestamp = after = before.to_next_batch(samples, 0, now_s - session.counted_s)
        session.counted_s = now_s
        if counts_batches:
            step_schedulers(before, after)
        session.is_unproven = False
        fire("batch_end")
        if counts_batches and session.eval_interval.passed(before, after):
            evaluate("batch_checkpoint")
        checkpoint("batch_checkpoint")

    def train_batch() -> None:
        """Compute the gradients, read the loss, and step the optimizers."""
        optimizers = state.optimizers
        for optimizer in optimizers:
            optimizer.zero_grad()
        fire("before_train_batch")
        loss, parts = gradients()
        session.has_gradients = True
        fire("after_train_batch")
        session.has_gradients = False
        read(loss, parts)
        try:
            for optimizer in optimizers:
                if state.skip_requested:
                    pass_for_stepped(optimizer)
                elif scaler is None:
                    optimizer.step()
                else:
                    scaler.step(optimizer)
        except Exception as error:
            blame_what_was_loaded(session, error)
            raise
        state.skip_requested = False
        if scaler is not None:
            scaler.update()

    def closure() -> torch.Tensor:
        """Compute the gradients of the batch anew and return its loss, see `State.closure`."""
        if not session.has_gradients or session.is_evaluating or scaler is not None:
            why = "its scaler unscales once a step" if scaler is not None else "it is for AFTER_TRAIN_BATCH"
            raise EngineError(f"state.closure can't be called here (precision {state.precision}): {why}")
        for optimizer in state.optimizers:
            optimizer.zero_grad()
        session.has_gradients = False
        try:
            return gradients()[0]
        finally:
            session.has_gradients = True

    def gradients() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Add up the gradients of the microbatches, unscale and clip them; return the batch's loss and its parts."""
        optimizers, whole = state.optimizers, state.batch
        try:
            if microbatch_size is None:
                loss, parts = microbatch(None)
            else:
                loss, parts = microbatches(whole, microbatch_size)
        except BaseException as error:
            engine.undo(error, OF_A_MICROBATCH)
            raise
        finally:
            state.batch = whole
        if scaler is not None:
            for optimizer in optimizers:
                scaler.unscale_(optimizer)
        if grad_clip_norm is not None:
            parameters = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
            torch.nn.utils.clip_grad_norm_(parameters, grad_clip_norm)
        return loss, parts

    def microbatches(whole: Any, size: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Run each microbatch; return the loss of the whole batch and its parts."""
        total, parts = torch.zeros((), device=device), dict[str, torch.Tensor]()
        for piece, share in split_with_shares(whole, size, state.loss_fn):
            state.batch = piece
            loss, own_parts = microbatch(share)
            total = total + loss.detach()
            parts = {name: part.detach() + parts.get(name, 0) for name, part in own_parts.items()}
        state.loss = total
        return total, parts

    def microbatch(share: float | None) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Forward, loss and backward of `state.batch`; return its weighted loss and the loss's parts."""
        fire("before_forward")
        state.outputs = outputs_of(state)
        fire("after_forward")
        fire("before_loss")
        state.loss = loss_of(state)
        fire("after_loss")
        state.loss, parts = reduce_loss(state.loss, share)
        fire("before_backward")
        loss: Any = state.loss
        scaled: Any = loss if scaler is None else scaler.scale(loss)
        create_graph = engine.backwards_create_graph
        if create_graph and not session.has_built_graph:
            session.has_built_graph = True
            backward_with_first_graph(scaled)
        else:
            scaled.backward(create_graph=create_graph)
        fire("after_backward")
        return loss, parts

    def end_epoch() -> None:
        """Count the epoch, step the schedulers of epochs, evaluate."""
        session.feed.end_epoch(session.batches)
        session.batches = None
        before = state.timestamp
        if not before.batch_in_epoch:
            raise EngineError(
                f"the train_dataloader gave no batch in epoch {before.epoch}; "
                "it has to be an iterable with data that starts anew for each epoch, as a DataLoader or a list does"
            )
        state.timestamp = after = before.to_next_epoch()
        step_schedulers(before, after)
        fire("epoch_end")
        if session.eval_interval.passed(before, after):
            evaluate("epoch_checkpoint")
        checkpoint("epoch_checkpoint")

    def step_schedulers(before: Timestamp, after: Timestamp) -> None:
        """Step each scheduler whose interval is complete."""
        try:
            for scheduler, interval in session.schedulers:
                if interval.passed(before, after):
                    scheduler.step()
        except Exception as error:
            blame_what_was_loaded(session, error)
            raise

    def evaluate(then: str) -> None:
        """Read what is held of the loss, then evaluate if there is anything to evaluate on; `then` is what follows."""
        session.readings.flush()
        evaluated_at, session.awaited = session.evaluated_at, None
        found, session.found = session.found, {}
        if evaluated_at == state.timestamp.batch:
            return
        session.evaluated_at = state.timestamp.batch
        if state.evaluators:
            try:
                session.evaluate(state.evaluators, begun=found)
            except EvaluationInterrupted as interruption:
                session.evaluated_at, session.awaited, session.found = evaluated_at, then, interruption.results

    def checkpoint(event: str) -> None:
        """Let savers save, and end if a signal has asked for it."""
        fire(event)
        if state.interrupted_by is not None:
            raise_if_interrupted(state)

    session.is_fitting, session.has_gradients, session.is_loaded, state.closure = True, False, False, closure
    if state.pause_requested:  # by somebody before this fit
        state.stop_requested = state.pause_requested = False
    state.skip_requested = False
    state.snapshot, state.go_back = lambda: take_snapshot(session), lambda content: go_back(session, content)
    try:
        with interruptible(state):
            fit()
    except BaseException as error:
        session.begins_anew = Event.EPOCH_START in engine.undo(error) and session.batches is not None
        session.readings.salvage(error)
        raise
    finally:
        session.is_fitting, state.closure, state.snapshot, state.go_back = False, None, None, None


def backward_with_first_graph(loss: Any) -> None:
    """Silence what torch says the first time: it is about gradients that nobody resets, and the loop does."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Using backward.. with create_graph=True", UserWarning)
        loss.backward(create_graph=True)


def end_test(state: State, end: Time, what: str) -> Callable[[], bool]:
    """Return a function that says whether the clock has reached `end`, or the run was asked to stop."""
    length = Interval(end, what).length
    field, value = FIELD_OF[length.unit], length.value
    return lambda: state.timestamp[field] >= value or state.stop_requested
