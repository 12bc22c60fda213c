"""The events that Hugging Face's Trainer fires, in order, and what explains, traces, audits and measures them."""

import json

import pytest
import transformers

from engine_core import Algorithm, AlgorithmMetadata, Event
from engine_core.errors import AuditWarning
from engine_core_author import RecordingDestination
from engine_core_author.audit_callback import Audit
from engine_core_author.probes import at_events
from insight_plugin import Profiler

from .cases import make_algorithms
from .transformers_runs import KEYS, Digits, make_trainer

STEP = """
after_dataloader batch_start before_train_batch before_forward after_forward before_loss after_loss before_backward
after_backward after_train_batch batch_end batch_checkpoint
"""
EVALUATION = "eval_start eval_batch_start eval_before_forward eval_after_forward eval_batch_end eval_end"
MICROBATCH = "before_forward after_forward before_loss after_loss before_backward after_backward"
ALL = [*Event]


def fired(folder, *, given=None, **args):
    """Return what is fired by training on two batches and evaluating on one, and the trainer."""
    events = []
    own = {"train_dataset": Digits(0, 16), "eval_dataset": Digits(16, 20), **(given or {})}
    callbacks = [at_events(ALL, lambda event, _: events.append(event.value))]
    trainer = make_trainer(folder, engine_callbacks=callbacks, args={"num_train_epochs": 1, **args}, **own)
    trainer.train()
    return events, trainer


def test_two_batches_and_an_evaluation(tmp_path):
    order = f"init fit_start epoch_start {STEP} {STEP} epoch_end {EVALUATION} epoch_checkpoint fit_end"
    assert fired(tmp_path)[0] == order.split()


def test_an_evaluation_in_mid_epoch_comes_after_both_events_of_the_batch(tmp_path):
    events, _ = fired(tmp_path, eval_strategy="steps", eval_steps=1)
    once = f"{STEP} {EVALUATION}"
    assert events == f"init fit_start epoch_start {once} {once} epoch_end epoch_checkpoint fit_end".split()


def test_a_black_box_fires_all_but_forward_and_loss(tmp_path):
    events, _ = fired(tmp_path, given={"loss_fn": None})
    inside = ("before_forward", "after_forward", "before_loss", "after_loss")
    step = " ".join(event for event in STEP.split() if event not in inside)
    order = f"init fit_start epoch_start {step} {step} epoch_end {EVALUATION} epoch_checkpoint fit_end".split()
    assert events == order


def test_a_step_of_two_batches(tmp_path):
    events, trainer = fired(tmp_path, gradient_accumulation_steps=2)
    step = f"""
    after_dataloader after_dataloader batch_start before_train_batch {MICROBATCH} {MICROBATCH} after_train_batch
    batch_end batch_checkpoint
    """
    assert events == f"init fit_start epoch_start {step} epoch_end {EVALUATION} epoch_checkpoint fit_end".split()
    assert trainer.engine_state.timestamp[:3] == (1, 1, 16)
    assert trainer.engine_state.dataloader_len == 1


def test_the_end_in_mid_epoch_ends_no_epoch(tmp_path):
    events, trainer = fired(tmp_path, max_steps=1, eval_strategy="no")
    assert events == f"init fit_start epoch_start {STEP} fit_end".split()
    assert trainer.engine_state.get_elapsed_duration().value == 1


def test_evaluate_and_predict_alone(tmp_path):
    events, trainer = fired(tmp_path)
    state, before = trainer.engine_state, {**trainer.engine_state.metrics}
    del events[:]
    seen = []
    state.callbacks.append(
        at_events([Event.EVAL_BATCH_END], lambda _, s: seen.append((s.dataloader_label, s.loss is None)))
    )

    assert trainer.evaluate()["eval_loss"] == pytest.approx(before["eval_loss"])
    assert events == EVALUATION.split()
    predicted = trainer.predict(Digits(16, 20))
    assert events == 2 * EVALUATION.split()
    assert predicted.predictions.shape == (4, 10) and state.metrics.keys() == before.keys()

    del events[:]
    images = [{"pixel_values": row["pixel_values"]} for row in Digits(16, 20)]
    assert trainer.predict(images).predictions.shape == (4, 10)
    assert events == EVALUATION.split()
    assert seen == [("eval", False), ("predict", False), ("predict", True)]
    assert state.dataloader_label is None and state.timestamp[:3] == (1, 2, 16)


def test_each_evaluation_set_has_its_label(tmp_path):
    labels = []
    watch = at_events([Event.EVAL_START], lambda _, state: labels.append(state.dataloader_label))
    sets = {"near": Digits(16, 20), "far": Digits(20, 24)}
    _, trainer = fired(tmp_path, given={"eval_dataset": sets, "callbacks": []})
    trainer.engine_state.callbacks.append(watch)
    trainer.evaluate()
    assert labels == ["eval_near", "eval_far"]
    assert {"eval_near_loss", "eval_far_loss"} <= trainer.engine_state.metrics.keys()


def test_explain_gives_the_order_and_loggers_get_traces(tmp_path):
    memory = RecordingDestination()
    algorithms = make_algorithms("together", keys=KEYS)[::-1]
    trainer = make_trainer(tmp_path, algorithms, engine_loggers=memory, args={"max_steps": 1, "eval_strategy": "no"})
    order = {event: [each.name for each in trainer.engine.explain(event)] for event in ("fit_start", "before_loss")}
    assert order == {"fit_start": ["selective_backprop", "ema"], "before_loss": ["label_smoothing"]}

    trainer.train()
    ran = [key for traces in memory.traces for key, trace in traces.items() if trace.run]
    assert [key for key in ran if "LOSS" in key] == ["LabelSmoothing/BEFORE_LOSS", "LabelSmoothing/AFTER_LOSS"]
    assert "SelectiveBackprop/AFTER_DATALOADER" in ran and "EMA/BATCH_END" in ran


class Careless(Algorithm):
    """Halves the loss, and does not say so."""

    metadata = AlgorithmMetadata(events=("after_loss",), writes=())

    def match(self, event, state):
        return True

    def apply(self, event, state, logger):
        state.loss = state.loss / 2


def test_the_audit_names_who_broke_a_promise(tmp_path):
    trainer = make_trainer(tmp_path, [Careless()], engine_callbacks=[Audit()], args={"max_steps": 2})
    with pytest.warns(AuditWarning, match="Careless changed loss at AFTER_LOSS of batch 0 without declaring it"):
        trainer.train()


def test_the_profiler_has_its_spans(tmp_path):
    file = tmp_path / "spans.json"
    callbacks = [Profiler(file)]
    trainer = make_trainer(tmp_path, make_algorithms("ema"), engine_callbacks=callbacks, args={"max_steps": 2})
    trainer.train()
    trainer.engine.close()
    names = [span["name"] for span in json.loads(file.read_text()) if "name" in span]
    spans = ("algorithm/EMA/batch_end", "event/forward", "event/loss", "event/backward", "event/train_batch")
    assert [names.count(span) for span in spans] == [2] * len(spans)
    assert names.count("event/fit") == names.count("event/eval") == 1


class Counting(Algorithm):
    """Logs a count at each step, and at the end."""

    metadata = AlgorithmMetadata(events=("batch_end", "fit_end"), writes=())

    def match(self, event, state):
        return True

    def apply(self, event, state, logger):
        logger.log_metrics({"counting/at_end" if event is Event.FIT_END else "counting/step": state.timestamp.batch})


def test_what_algorithms_log_reaches_the_log_of_the_trainer(tmp_path):
    told = []

    class Tracker(transformers.TrainerCallback):
        def on_log(self, args, state, control, logs, **_):
            told.append({name: value for name, value in logs.items() if name.startswith("counting/")})

    args = {"logging_steps": 3, "max_steps": 7, "eval_strategy": "no"}
    trainer = make_trainer(tmp_path, [Counting()], callbacks=[Tracker()], args=args)
    trainer.train()
    found = [(log["step"], name, log[name]) for log in trainer.state.log_history for name in log if "count" in name]
    assert found == [*((step, "counting/step", step) for step in (3, 6, 7)), (7, "counting/at_end", 7)]
    assert [each for each in told if each] == [
        *({"counting/step": 3}, {"counting/step": 6}, {"counting/step": 7}, {"counting/at_end": 7})
    ]
    assert [log["step"] for log in trainer.state.log_history if "loss" in log] == [3, 6]
