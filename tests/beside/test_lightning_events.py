"""Events come in Lightning in the order of docs/reference/events.md; explain, traces, audit and profiler work there."""

from engine_core import Event
from engine_core_author.probes import at_events

from .cases import make_loaders
from .lightning_runs import ITS_WARNINGS, Digits, make_callback, make_trainer

pytestmark = ITS_WARNINGS
STEP = """
after_dataloader batch_start before_train_batch before_forward after_forward before_loss after_loss
before_backward after_backward after_train_batch batch_end batch_checkpoint
"""
EVALUATION = """
eval_start
eval_batch_start eval_before_forward eval_after_forward eval_batch_end
eval_batch_start eval_before_forward eval_after_forward eval_batch_end
eval_batch_start eval_before_forward eval_after_forward eval_batch_end
eval_end
"""


def witness(heard):
    """Return a callback that notes every event, with the clock's batch and sample."""
    return at_events([*Event], lambda event, state: heard.append((event.value, *state.timestamp[1:3])))


def fit(case="none", *, batches=2, module=None, batch=8, **settings):
    """Train an epoch of a few batches; return what was heard, and the callback."""
    heard = []
    black_box = {"loss_fn": settings.pop("loss_fn")} if "loss_fn" in settings else {}
    callback = make_callback(case, callbacks=[witness(heard)], **black_box)
    trainer = make_trainer([callback], max_epochs=1, **{"limit_train_batches": batches, **settings})
    trainer.fit(Digits() if module is None else module, *make_loaders(batch=batch))
    return heard, callback


def heard(**given):
    """Return the events of training so."""
    return [event for event, *_ in fit(**given)[0]]


def test_two_batches_and_an_evaluation():
    order = f"init fit_start epoch_start {STEP} {STEP} epoch_end {EVALUATION} epoch_checkpoint fit_end"
    assert heard() == order.split()


def test_a_black_box_has_no_events_of_forward_and_loss():
    left_out = {"before_forward", "after_forward", "before_loss", "after_loss"}
    order = f"init fit_start epoch_start {STEP} {STEP} epoch_end {EVALUATION} epoch_checkpoint fit_end"
    assert heard(loss_fn=None) == [event for event in order.split() if event not in left_out]


def test_under_accumulation_a_step_begins_and_ends_once():
    microbatch = "before_forward after_forward before_loss after_loss before_backward after_backward"
    first = f"after_dataloader batch_start before_train_batch {microbatch}"
    step = f"{first} after_dataloader {microbatch} after_train_batch batch_end batch_checkpoint"
    last = f"{first} after_train_batch batch_end batch_checkpoint"
    clock, callback = fit(batches=3, batch=4, accumulate_grad_batches=2, limit_val_batches=0)
    order = f"init fit_start epoch_start {step} {last} epoch_end epoch_checkpoint fit_end"
    assert [event for event, *_ in clock] == order.split()
    assert [(batch, samples) for event, batch, samples in clock if event == "batch_end"] == [(1, 8), (2, 12)]
    assert [batch for event, batch, _ in clock if event == "after_dataloader"] == [0, 0, 1]
    assert callback.state.dataloader_len == 2


def test_a_validation_in_mid_epoch_comes_after_the_batchs_events():
    order = f"init fit_start epoch_start {STEP} {EVALUATION} {STEP} epoch_end {EVALUATION} epoch_checkpoint fit_end"
    assert heard(val_check_interval=1) == order.split()


def test_the_sanity_check_is_not_an_evaluation():
    assert heard(num_sanity_val_steps=2) == heard()


def test_the_end_in_mid_epoch_is_no_end_of_an_epoch():
    order = f"init fit_start epoch_start {STEP} {STEP} fit_end"
    assert heard(batches=1.0, max_steps=2, limit_val_batches=0) == order.split()


def test_an_epoch_that_the_module_cuts_short_ends():
    class Short(Digits):
        def on_train_batch_start(self, batch, batch_idx):
            return -1 if batch_idx == 2 else None

    order = f"init fit_start epoch_start {STEP} {STEP} epoch_end epoch_checkpoint fit_end"
    assert heard(module=Short(), batches=1.0, limit_val_batches=0) == order.split()
