"""Metadata says which fields and which events: at which events does a field count as written?"""

import warnings

import pytest

from engine_core import Engine, Event, Logger, State
from engine_core.errors import UnorderedWritersWarning

from .parts import made


def writer(class_name, events, *writes):
    return made(class_name, events=events, writes=writes)


def told(*algorithms):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UnorderedWritersWarning)
        Engine(State(algorithms=list(algorithms)), Logger()).close()
    return [str(warning.message) for warning in caught]


def judged_at(field):
    found = set()
    for event in Event:
        if told(writer("A", (event,), field), writer("B", (event,), field)):
            found.add(event.value)
    return found


STEP = [
    "after_dataloader", "batch_start", "before_train_batch", "before_forward", "after_forward", "before_loss",
    "after_loss", "before_backward", "after_backward", "after_train_batch", "batch_end",
]  # fmt: skip


@pytest.mark.parametrize(
    ("field", "events"),
    [
        ("batch", [*STEP, "eval_batch_start", "eval_before_forward", "eval_after_forward", "eval_batch_end"]),
        ("outputs", [*STEP[4:], "eval_after_forward", "eval_batch_end"]),
        ("loss", [*STEP[6:], "eval_batch_end"]),
        ("metrics", ["eval_end", "batch_checkpoint", "epoch_checkpoint", "fit_end"]),
        *((field, map(str, Event)) for field in ("model", "optimizers", "schedulers", "loss_fn")),
    ],
)
def test_what_is_made_anew_counts_while_it_is_there_and_what_lasts_at_each_event(field, events):
    assert judged_at(field) == set(events)


DECLARE = (
    "and only their positions in the list decide which runs first: declare before, after, around or within in the "
    "metadata of one, or set the order with explicit_order("
)


def test_each_field_is_named_with_its_own_events():
    both = ("init", "before_forward", "after_forward"), "batch", "outputs", "model"
    (message,) = told(writer("A", *both), writer("B", *both))
    assert message == (
        "A and B both write model at INIT, and batch and model at BEFORE_FORWARD, and batch and model and outputs "
        f"at AFTER_FORWARD, {DECLARE}"
        "{'init': ['a', 'b'], 'before_forward': ['a', 'b'], 'after_forward': ['b', 'a']}), in a config with `order:`"
    )


def test_two_that_list_no_events_are_named_in_one_warning_that_stays_short():
    (message,) = told(writer("A", None, "outputs"), writer("B", None, "outputs"))
    assert message == (
        f"A and B both write outputs at AFTER_FORWARD, BEFORE_LOSS, AFTER_LOSS and 6 more, {DECLARE}"
        "{'after_forward': ['b', 'a'], 'before_loss': ['a', 'b'], 'after_loss': ['b', 'a'], ...}), in a config with "
        "`order:`; A lists no events, which counts as all of them; B lists no events, which counts as all of them"
    )
    (message,) = told(writer("A", None, "batch"), writer("B", ("init", "after_dataloader"), "batch"))
    assert message.startswith("A and B both write batch at AFTER_DATALOADER, and only")
    assert message.endswith(
        "{'after_dataloader': ['b', 'a']}), in a config with `order:`; A lists no events, which counts as all of them"
    )
