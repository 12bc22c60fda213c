"""The events of a loop with Accelerate come in the documented order; explain, traces, audit and profiler see them."""

import pytest
import torch

from engine_core import Callback, Event
from engine_core_author.probes import at_events

from .accelerate_runs import Run, make_accelerator
from .cases import make_loaders

BATCH_EVENTS = """
after_dataloader batch_start before_train_batch before_forward after_forward before_loss after_loss before_backward
after_backward after_train_batch"""
WHOLE = f"""
init fit_start epoch_start
{BATCH_EVENTS} STEP batch_end batch_checkpoint
{BATCH_EVENTS} STEP batch_end batch_checkpoint
epoch_end epoch_checkpoint
eval_start EVALUATES eval_end
fit_end"""
WITHIN = f"""
init fit_start epoch_start
{BATCH_EVENTS} STEP batch_end eval_start EVALUATES eval_end batch_checkpoint
{BATCH_EVENTS} STEP batch_end batch_checkpoint
epoch_end epoch_checkpoint
fit_end"""
ACCUMULATED = f"""
init fit_start epoch_start
{BATCH_EVENTS.removesuffix(" after_train_batch")}
after_dataloader before_forward after_forward before_loss after_loss before_backward after_backward
after_train_batch STEP batch_end batch_checkpoint
{BATCH_EVENTS} STEP batch_end batch_checkpoint
epoch_end epoch_checkpoint fit_end"""


def traced(rows, *, steps=1, within=False, evaluates=True, breaks=False):
    """Return the events of an epoch, with the marks of what the user does."""
    events = []
    loaders = make_loaders(batch=8, rows=rows)
    watch = at_events([*Event], lambda event, _: events.append(event.value))
    case, accelerator = "together" if steps == 1 else "ema", make_accelerator(steps)
    run = Run(case, callbacks=[watch], loaders=loaders, accelerator=accelerator)
    run.optimizer.optimizer.register_step_post_hook(lambda *_: events.append("STEP"))

    def evaluate():
        with run.loop.evaluation("eval") as results:
            events.append("EVALUATES")
            results["loss"] = torch.tensor(0.5)

    with run.fit():
        for number in run.steps():
            if within and not number:
                evaluate()
            if breaks:
                break
        if breaks:
            run.rest(1)
        if evaluates and not within:
            evaluate()
    return events, run


def test_an_epoch_of_two_batches_with_an_evaluation():
    events, run = traced(16)
    assert events == WHOLE.split()
    assert run.state.metrics == {"eval/loss": 0.5}


def test_an_evaluation_within_an_epoch_comes_before_the_checkpoint_of_the_batch():
    assert traced(16, within=True)[0] == WITHIN.split()


def test_batches_that_accumulate_are_microbatches_and_the_last_step_is_shorter():
    events, run = traced(24, steps=2, evaluates=False)
    assert events == ACCUMULATED.split()
    assert run.state.timestamp[:3] == (1, 2, 24)


def test_a_break_ends_no_epoch_and_the_rest_of_it_is_the_same_one():
    events, run = traced(16, evaluates=False, breaks=True)
    assert events == WHOLE.replace("eval_start EVALUATES eval_end", "").split()
    assert run.state.timestamp[:3] == (1, 2, 16)


def test_the_clock_and_the_batch_are_those_of_each_event():
    seen = []

    class Watch(Callback):
        def after_dataloader(self, state, logger):
            seen.append(("loaded", state.timestamp.batch, len(state.batch[0])))

        def after_backward(self, state, logger):
            seen.append(("microbatch", state.timestamp.batch, len(state.batch[0])))

        def batch_end(self, state, logger):
            seen.append(("end", state.timestamp.batch, state.timestamp.sample, state.get_elapsed_duration().value))

        def eval_start(self, state, logger):
            seen.append((state.dataloader_label, state.dataloader_len, state.model.training, torch.is_grad_enabled()))

        def epoch_end(self, state, logger):
            seen.append((state.dataloader_label, state.dataloader_len, state.model.training))

    run = Run(callbacks=[Watch()], loaders=make_loaders(rows=12), max_duration="4ep", accelerator=make_accelerator(2))
    run.train(1)
    assert seen == [
        *(("loaded", 0, 8), ("microbatch", 0, 8), ("loaded", 0, 4), ("microbatch", 0, 4)),
        *(("end", 1, 12, 0.25), ("train", 1, True), ("eval", 3, False, False)),
    ]


def test_what_raises_names_who_ran_in_the_batch():
    def fail(outputs, targets):
        raise ArithmeticError("no loss")

    run = Run("label_smoothing", loss_fn=fail)
    with pytest.raises(ArithmeticError) as raised, run.fit():
        run.epoch()
    assert "in this batch ran: LabelSmoothing at BEFORE_LOSS" in "".join(raised.value.__notes__)
