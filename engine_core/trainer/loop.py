"""The training loop, from `fit` down to the microbatch, and what a fit puts back. Its moments are those of the seam."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import isfinite
from typing import Any

import torch

from ..batch import move_batch
from ..engine import warn_of_idle
from ..errors import ArgumentError, EngineError, add_note
from ..loop import backward_with_first_graph, factor_of, keep_modules, scale_gradients
from ..messages import plural, warn
from ..objective import Loss, check_objective
from ..state import State
from ..time import Time, Timestamp
from .evaluation import mark_of_evaluated, run_eval
from .feed import BeforeBatch, check_dealable, enter_loader
from .optimizers import clip_gradients, pass_for_stepped, warn_of_lengths, warn_of_untrained
from .peeking import peeking
from .requests import EvaluationInterrupted, signals_noted
from .saved import go_back, take_snapshot
from .session import (
    Session,
    blame_what_was_loaded,
    explain_out_of_memory,
    lose_no_batch,
    place_in_training,
    place_of,
    take_part,
    warn_of_unread,
)


def loop_of(session: Session, end: Time) -> tuple[Callable[[], None], Callable[[], torch.Tensor]]:
    """Return `fit`, the loop, and `closure`, which computes the gradients of its batch again.

    They and the parts of the loop are functions in one, so that a step finds what it needs in locals.
    """
    seam, state, engine, status = session.seam, session.state, session.engine, session.status
    feed, device = session.feed, session.device
    scaler, readings, logger = session.precision.scaler, session.readings, engine.logger
    objective, wrapping = state.objective, session.wrapping
    forward, given_of = session.precision.wrap(objective.forward), session.precision.wrap(objective.given)
    together = session.together  # None: one process
    at_end = session.end_test(end)
    counts_batches = not all(i.in_epochs for i in (session.eval_interval, *(s.interval for s in session.schedulers)))
    moves, reads_late = device.type != "cpu", readings.is_late
    microbatch_size, grad_clip_norm = session.microbatch_size, session.grad_clip_norm
    at_once = microbatch_size is None and together is None
    profiler = state.profiler
    warns_of_graph = is_first = True

    def fit() -> None:
        """Run epochs until the end, and evaluate again if the last interval is incomplete."""
        enter_loader(state)
        with peeking(session):
            seam.fit_start()
        warn_of_lengths(session.schedulers, session.told, state)
        if status.owed is not None:
            then = status.owed.then
            evaluate(then)
            checkpoint(then)
        while not at_end() or is_epoch_over():
            epoch()
        session.agree_on_end()
        if not state.loop.pause_requested:
            if status.evaluated is not None and state.ranks.any(status.evaluated != mark_of_evaluated(engine)):
                status.evaluated_at = None  # since then the end of the epoch changed an average, say
            evaluate("batch_checkpoint")
            if status.owed is not None:
                checkpoint(status.owed.then)
        session.agree_on_end()  # FIT_END sees what was asked for in the last evaluation, as on one process
        session.left_in_eval = not session.is_training()  # what FIT_END does to it is for others
        seam.fit_end()

    def is_epoch_over() -> bool:
        """Has the loader no further batch in this epoch? It is asked where its `len` says so, which may be wrong.

        An evaluation that its last batch owes comes before the end of the epoch.
        """
        length = state.dataloader_len
        is_last = status.owed is None and session.batches is not None and length is not None and feed.taken >= length
        if not state.ranks.any(is_last):
            return False
        try:
            session.batches = feed.look_ahead(session.batches)
        except BaseException as error:
            lose_no_batch(session, error, checkpoint)
            raise
        return feed.is_exhausted

    def epoch() -> None:
        """Run the batches of one epoch, or those that an earlier fit left over."""
        if session.batches is not None and at_end():  # saved after its last batch, then loaded
            end_epoch()
            return
        if session.batches is None or status.reopens_epoch:
            state.loop.put_in_order = feed.taker_of_order(has_begun=session.batches is not None)
            seam.epoch_start()
            state.loop.put_in_order = None
        if session.batches is None:
            try:
                session.batches = feed.start_epoch()
            except BaseException as error:
                lose_no_batch(session, error, checkpoint)
                raise
        before = BeforeBatch(state, device)
        while True:
            if before.is_needed:
                before.look()
            seam.before_dataloader()
            try:
                state.batch = next(session.batches)
            except StopIteration:
                feed.is_exhausted = True
                seam.exhausted()
                break
            except BaseException as error:
                lose_no_batch(session, error, checkpoint, before)
                raise
            feed.taken += 1
            if before.is_needed:
                before.look_again()
            batch()
            if at_end():
                if is_epoch_over():
                    break
                return  # also where an evaluation of this batch is owed: the next fit finishes it, and then the epoch
        end_epoch()

    def batch() -> None:
        """Train on one batch, from the loader to the checkpoint."""
        nonlocal is_first
        before = state.timestamp
        try:
            seam.take(move_batch(state.batch, device), state.batch) if moves else seam.take(state.batch)
            if is_first:
                warn_of_untrained(state, session.told)
            train_batch()
            if is_first:
                is_first = False
                if session.is_new("unread items"):
                    warn_of_unread(state, engine)
        except Exception as error:
            explain_out_of_memory(error, state, *place_in_training(session, seam.samples))
            raise
        then = step_schedulers if counts_batches else None
        if together is None:
            seam.end_step(then)
        else:  # rank 0's, to the bit: durations in seconds end at the same batch everywhere
            seam.end_step(then, samples=together.rows, tokens=together.tokens, seconds=together.seconds)
        evaluates = counts_batches and session.eval_interval.passed(before, state.timestamp)
        if evaluates:
            evaluate("batch_checkpoint")
        if together is not None:
            together.agree_on_end(is_settled=not evaluates)
        # As in `checkpoint`, in line for the cost of a call.
        seam.batch_checkpoint()
        if state.loop.interrupted_by is not None:
            session.end_if_interrupted()

    def train_batch() -> None:
        """Compute the gradients, read the loss, and step the optimizers."""
        seam.begin_step(seam.clear_gradients)
        loss, parts = gradients()
        seam.end_gradients()
        if together is not None:
            together.agree_on_step()
        # Before the step: a bad loss is reported while the weights are still good.
        if reads_late or logger.destinations or not (readings.was_finite and isfinite(loss.item())):
            readings.take(loss, parts)
        if profiler is not None and not state.loop.skip_requested:
            profiler.begin("optimizer")
        try:
            for optimizer in state.optimizers:
                if state.loop.skip_requested:
                    state.gradient_norm = None
                    pass_for_stepped(optimizer)
                elif scaler is None:
                    optimizer.step()
                else:
                    scaler.step(optimizer)
        except Exception as error:
            blame_what_was_loaded(session, error, state.timestamp.batch)
            raise
        if scaler is not None:
            scaler.update()
        if profiler is not None:
            profiler.end("optimizer")
        if together is not None:
            wrapping.mean_buffers()

    def gradients() -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Add up the gradients of the microbatches, unscale and clip them; return the batch's loss and its parts."""
        whole = state.batch
        try:
            state.loss_weight = None
            loss, parts = microbatch(None) if at_once else microbatches(whole)
        except BaseException as error:
            seam.undo_microbatch(error)  # before the whole batch is restored
            raise
        finally:
            state.batch = whole
        if grad_clip_norm is not None:
            state.gradient_norm = clip_gradients(state.optimizers, grad_clip_norm)
        return loss, parts

    def microbatches(whole: Any) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Run each microbatch; return the loss of the whole batch, over all ranks, and its parts."""
        pieces, nominal = session.split(whole)
        if nominal is None:
            return microbatch(None)
        losses = list[Loss]()
        state.loss_weight = nominal
        for number, piece in enumerate(pieces):
            state.batch = piece
            with wrapping.until_last(is_last=number == len(pieces) - 1):
                try:
                    if number < session.own_pieces:
                        microbatch(nominal, losses)
                    else:  # other ranks have more, and wait
                        take_part(state, forward, given_of, wrapping.called)
                except Exception as error:
                    if len(pieces) > 1:
                        add_note(error, place_of(number, pieces, state.batches))
                    raise
        total = Loss.merged(losses)
        if together is not None:
            total = together.add_up(total, seam.tokens, seam.counted_s)
        factor = factor_of(total, nominal * state.world_size)
        if scaler is not None:
            session.unscale()
        if not isinstance(factor, float) or factor != 1:
            scale_gradients(state.optimizers, factor)
        state.loss_weight, state.loss = total.count, total.mean
        if total.count is None:
            objective.scalar(total)  # so that it knows of the sum, also where its loss function returns Losses
        return state.loss, total.means

    def microbatch(nominal: float | None, losses: Any = None) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Run a microbatch; return its loss and parts. `nominal` divides its sum; None: it is alone."""
        nonlocal warns_of_graph
        seam.begin_forward(state.batch)
        seam.end_forward(forward(state.model if together is None else wrapping.called, state.batch))
        seam.begin_loss()
        outputs = state.outputs
        given = seam.end_loss(given_of(state.model, outputs, state.batch))
        if nominal is None:
            scalar, parts = objective.scalar(given)
        else:
            own = session.counted(objective.counted(given, outputs, state.batch))
            scalar, parts = own.sum / nominal, own.parts
        loss: Any = seam.begin_backward(scalar)
        if nominal is not None:
            total = own.sum if loss is scalar else loss * nominal  # an algorithm may have changed it
            losses.append(Loss(total.detach(), own.count, {name: part.detach() for name, part in parts.items()}))
        scaled: Any = loss if scaler is None else scaler.scale(loss)
        if not (engine.may_create_graph and engine.backwards_create_graph):
            scaled.backward()
        elif warns_of_graph:
            warns_of_graph = False
            backward_with_first_graph(scaled, None)
        else:
            scaled.backward(create_graph=True)
        seam.end_backward()
        if scaler is not None and nominal is None:
            session.unscale()
        return loss, parts

    def end_epoch() -> None:
        """Count the epoch, step the per-epoch schedulers, evaluate."""
        feed.end_epoch()
        session.batches = None
        objective.settle_parts()
        before = state.timestamp
        if not before.batch_in_epoch and not feed.taken:  # a batch that an exception cut was taken too
            raise EngineError(
                f"the train_dataloader gave no batches in epoch {before.epoch}; "
                "it has to be an iterable that starts over for each epoch, as a DataLoader or a list does"
            )
        status.evaluated = mark_of_evaluated(engine) if status.evaluated_at == before.batch else None
        seam.epoch_end(count_epoch)
        if session.eval_interval.passed(before, state.timestamp):
            evaluate("epoch_checkpoint")
        checkpoint("epoch_checkpoint")

    def count_epoch(before: Timestamp, after: Timestamp) -> None:
        """Step the per-epoch schedulers and log the epoch's loss."""
        step_schedulers(before, after)
        readings.end_epoch()

    def step_schedulers(before: Timestamp, after: Timestamp) -> None:
        """Step each scheduler whose interval is complete, unless an algorithm sets the learning rates."""
        if state.loop.schedulers_paused:
            return
        try:
            for scheduler, interval, *_ in session.schedulers:
                if interval.passed(before, after):
                    scheduler.step()
        except Exception as error:
            blame_what_was_loaded(session, error, before.batch)
            raise

    def evaluate(then: str) -> None:
        """Read the loss that is held, then evaluate, once per position; `then` is the event that follows."""
        readings.flush()
        begun = status.begin_evaluation()
        if begun is None or not state.evaluators:
            return
        try:
            run_eval(session, state.evaluators, session.is_asked_to_pause, begun)
        except EvaluationInterrupted as interruption:
            status.owe_evaluation(then, interruption.begun)

    def checkpoint(event: str) -> None:
        """Let savers save, and end if a signal asked for it."""
        session.agree_on_end()
        (seam.epoch_checkpoint if event == "epoch_checkpoint" else seam.batch_checkpoint)()
        session.end_if_interrupted()

    def closure() -> torch.Tensor:
        """Recompute the gradients of the batch and return its loss, see `LoopControl.closure`."""
        if scaler is not None:
            raise EngineError(
                f"state.loop.closure can't be called with precision {state.precision}: its scaler unscales once a step"
            )
        seam.clear_gradients()
        return gradients()[0]

    return fit, closure


def check_trainable(state: State) -> None:
    """Raise if there is nothing to train, or nothing to train it with."""
    if state.train_dataloader is None:
        raise ArgumentError("there is nothing to train on: give Trainer(train_dataloader=...)")
    if not state.optimizers:
        raise ArgumentError(
            "there is no optimizer: give Trainer(optimizers=torch.optim.SGD(model.parameters(), lr=0.1))"
        )
    if not any(p.requires_grad for o in state.optimizers for g in o.param_groups for p in g["params"]):
        raise ArgumentError("there is nothing to train: no parameter of the optimizers requires a gradient")
    check_objective(state.objective, state.model)


def enter_train_mode(model: Any) -> None:
    """Put a model that is in eval mode into train mode, but for frozen parts, and warn of it."""
    if model.training:
        return
    put_back, modes = keep_modules(model), [(module, module.training) for module in model.modules()]
    try:
        model.train()
        trains = [(module, [parameter.requires_grad for parameter in module.parameters()]) for module, _ in modes]
        frozen = {id(part) for module, own in trains if own and not any(own) for part in module.modules()}
        for module, is_training in modes:
            if id(module) in frozen:
                module.training = is_training
        if changed := sum(module.training and not is_training for module, is_training in modes):
            warn(
                f"the model came in eval mode, and fit() has put {plural(changed, 'module', 'modules')} of it into "
                "train mode; those with parameters that are all frozen stay as they are. Call model.train() before",
                UserWarning,
            )
    except Exception:
        put_back()
        raise


def run_fit(session: Session, end: Time) -> None:
    """Train until the clock reaches `end`, or a stop is asked for; warn of algorithms that never matched."""
    state, seam = session.state, session.seam
    with signals_noted(state, session.together):
        try:
            fit, closure = loop_of(session, end)
            seam.needs_rows = session.microbatch_size is not None or session.together is not None
            seam.lengths = {
                "eval_interval": session.eval_interval,
                **({} if end == state.max_duration else {"fit's duration": end}),
                **{f"{type(each.scheduler).__name__}'s interval": each.interval for each in session.schedulers},
            }
            seam.begin_fit(closure)
            if session.together is not None:
                session.together.begin_fit()
            state.loop.snapshot, state.loop.go_back = partial(take_snapshot, session), partial(go_back, session)
            if session.together is not None and not session.feed.is_local:
                check_dealable(state.train_dataloader, "train", state.ranks)
            fit()
        except BaseException as error:
            seam.undo(error)
            session.readings.salvage(error)  # after the model is as the algorithms found it: this may log, and fail
            raise
        finally:
            seam.end_fit()
            state.loop.snapshot = state.loop.go_back = state.loop.put_in_order = None
    elapsed = state.get_elapsed_duration()
    if elapsed is not None and elapsed.value >= 1 and state.loaded_from is None and not state.loop.pause_requested:
        warn_of_idle(session.engine.members, state)
