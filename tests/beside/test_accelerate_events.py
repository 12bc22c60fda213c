"""The events of a loop with Accelerate come in the documented order; explain, traces, audit and profiler see them."""

import json
import warnings

import pytest
import torch

from engine_core import Algorithm, AlgorithmMetadata, Callback, Event
from engine_core.errors import AuditWarning
from engine_core_author import RecordingDestination
from engine_core_author.audit_callback import Audit
from insight_plugin import Profiler

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
ACCUMULATED = """
init fit_start epoch_start
after_dataloader batch_start before_train_batch before_forward after_forward before_loss after_loss before_backward
after_backward
after_dataloader before_forward after_forward before_loss after_loss before_backward after_backward
after_train_batch STEP batch_end batch_checkpoint
after_dataloader batch_start before_train_batch before_forward after_forward before_loss after_loss before_backward
after_backward
after_train_batch STEP batch_end batch_checkpoint
epoch_end epoch_checkpoint fit_end"""
BROKEN = f"""
init fit_start epoch_start
{BATCH_EVENTS} STEP batch_end batch_checkpoint
{BATCH_EVENTS} STEP batch_end batch_checkpoint
epoch_end epoch_checkpoint fit_end"""


def journal(events):
    heard = {e.value: lambda self, state, logger, e=e: events.append(e.value) for e in Event}
    return type("Journal", (Callback,), heard)()


def traced(rows, *, steps=1, within=False, evaluates=True, breaks=False):
    """Return the events of an epoch, with the marks of what the user does."""
    events = []
    loaders = make_loaders(batch=8, rows=rows)
    run = Run("together" if steps == 1 else "ema", callbacks=[journal(events)], loaders=loaders,
              accelerator=make_accelerator(steps))  # fmt: skip
    run.optimizer.optimizer.register_step_post_hook(lambda *_: events.append("STEP"))

    def evaluate():
        with run.loop.evaluation("eval") as results:
            events.append("EVALUATES")
            results["loss"] = torch.tensor(0.5)

    with run.fit():
        for number, batch in enumerate(run.loop.batches(run.loader)):
            run.loop.gradients(batch)
            run.optimizer.step()
            if within and not number:
                evaluate()
            if breaks:
                break
        if breaks:
            run.epoch(run.accelerator.skip_first_batches(run.loader, 1))
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
    assert events == BROKEN.split()
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


def test_the_order_is_explained():
    run = Run("together")
    assert [e.name for e in run.loop.engine.explain("after_dataloader")] == ["selective_backprop"]
    assert [e.name for e in run.loop.engine.explain("before_loss")] == ["label_smoothing"]
    assert [e.name for e in run.loop.engine.explain("batch_end")] == ["ema"]


def test_loggers_get_traces_and_what_algorithms_log():
    logger = RecordingDestination()
    run = Run("together", loggers=[logger], loaders=make_loaders(rows=16))
    run.train(1)
    ran = [(t.name, t.event.value) for traces in logger.traces for t in traces.values() if t.run]
    assert ran[:6] == [
        *(("SelectiveBackprop", "init"), ("SelectiveBackprop", "fit_start")),
        ("SelectiveBackprop", "after_dataloader"),
        *(("LabelSmoothing", "before_loss"), ("LabelSmoothing", "after_loss"), ("EMA", "batch_end")),
    ]
    assert {name for _, metrics in logger.metrics for name in metrics} >= {"selective_backprop/kept"}


class Undeclared(Algorithm):
    metadata = AlgorithmMetadata(events=["after_loss"], writes=[])

    def match(self, event, state):
        return True

    def apply(self, event, state, logger):
        state.loss = state.loss * 2


def test_the_audit_names_who_broke_a_promise():
    audit = Audit()
    with pytest.warns(AuditWarning, match="Undeclared"):
        Run([Undeclared()], callbacks=[audit], loaders=make_loaders(rows=8)).train(1)
    assert [(found.field, found.event) for found in audit.findings] == [("loss", Event.AFTER_LOSS)]


@pytest.mark.parametrize("case", ["together", "sam", "swa", "stochastic_depth", "cutmix", "progressive_resizing"])
def test_the_audit_finds_nothing_in_the_algorithms(case):
    audit = Audit(on_finding="error")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Run(case, callbacks=[audit], loaders=make_loaders(rows=16)).train(1)
    assert audit.findings == []


def test_the_profiler_has_its_spans(tmp_path):
    run = Run("together", callbacks=[Profiler(tmp_path / "trace.json")], loaders=make_loaders(rows=16))
    run.train(1)
    run.loop.close()
    names = [span["name"] for span in json.loads((tmp_path / "trace.json").read_text()) if span["ph"] == "X"]
    assert names.count("algorithm/LabelSmoothing/before_loss") == 2
    spans = ["fit", "epoch", "batch", "train_batch", "forward", "loss", "backward", "eval"]
    assert {name for name in names if name.startswith("event/")} == {f"event/{span}" for span in spans}


def test_what_raises_names_who_ran_in_the_batch():
    def fail(outputs, targets):
        raise ArithmeticError("no loss")

    run = Run("label_smoothing", loss_fn=fail)
    with pytest.raises(ArithmeticError) as raised, run.fit():
        run.epoch()
    assert "in this batch ran: LabelSmoothing at BEFORE_LOSS" in "".join(raised.value.__notes__)
