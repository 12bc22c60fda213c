"""The loss of each step: logged with its step, warned of if it is not finite, one step late on a device."""

import warnings

import pytest
import torch

from engine_core.errors import NonFiniteLossWarning

from .parts import Memory, at, batches, linear, notes, trainer


def spoiled(*at_batches):
    """Return a loss function that gives NaN at these calls."""
    calls = iter(range(100))
    return lambda outputs, targets: outputs.mean() * (float("nan") if next(calls) in at_batches else 1.0)


def test_it_warns_each_time_that_the_loss_turns_not_finite_and_not_at_each_step_after():
    given, one = spoiled(1, 2, 4), torch.ones(())  # the weights stay finite
    with pytest.warns(NonFiniteLossWarning) as caught:
        trainer(batches(8, 8, 8), max_duration="2ep", loss_fn=lambda o, t: 0 * o.mean() + given(one, t)).fit()
    told = [str(w.message).split("; ", 1) for w in caught]
    assert [first for first, _ in told] == [f"the training loss is nan at batch {n} (epoch {n // 3})" for n in (1, 4)]
    remedy = "To skip such a batch, stop or roll back instead: callbacks=[('loss_guard', {'policy': 'skip'})]"
    assert told[0][1] == f"training continues. {remedy}"


def test_asked_to_stop_it_stops_before_the_step_that_would_spoil_the_weights():
    model = linear()
    made = trainer(batches(8, 8, 8), model, loss_fn=spoiled(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error", NonFiniteLossWarning)
        with pytest.raises(NonFiniteLossWarning, match="nan at batch 1"):
            made.fit()
    assert all(p.isfinite().all() for p in model.parameters())
    made.fit()
    assert (made.state.timestamp.epoch, made.state.timestamp.batch) == (1, 2)


def late_trainer(memory, **settings):
    """Return a trainer that reads losses late, as it does on a device."""
    made = trainer(loggers=memory, **settings)
    made._session.readings.is_late = True
    return made


def test_read_late_a_fit_logs_what_it_logs_otherwise_and_in_the_same_order_one_step_later():
    """What is held is read before an evaluation and at the end of fit."""
    said = []
    note = at("batch_end", lambda state: said.append(len(late.metrics)))
    settings = {"data": batches(8, 8, 8), "eval_dataloader": batches(3), "eval_interval": "2ba", "max_duration": "2ep"}
    late, at_once = Memory(), Memory()
    late_trainer(late, callbacks=note, **settings).fit()
    trainer(loggers=at_once, **settings).fit()
    assert late.metrics == at_once.metrics
    assert said[:2] == [0, 1]
    assert [next(iter(metrics)) for _, metrics in late.metrics][:3] == ["train/loss", "train/loss", "eval/loss"]


def test_read_late_the_last_loss_is_not_lost_when_training_breaks_off_and_takes_the_place_of_nothing():
    def stop(state):
        if state.timestamp.batch == 1:
            raise KeyboardInterrupt

    steps = []
    for settings in ({}, {"loss_fn": spoiled(0)}):
        memory = Memory()
        made = late_trainer(memory, callbacks=at("before_forward", stop), **settings)
        with warnings.catch_warnings(), pytest.raises(KeyboardInterrupt) as error:
            warnings.simplefilter("error", NonFiniteLossWarning)
            made.fit()
        steps += [step for step, _ in memory.metrics]
    assert steps[:1] == [0]
    assert notes(error)[-1].startswith("the loss of the last batch could not be read: the training loss is nan")
