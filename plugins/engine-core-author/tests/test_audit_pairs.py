"""What an algorithm changes at the first half of a pair has to be back after its second half, bit by bit."""

import pytest
from parts import acting, batches, net

from .audits import audited

PAIRS = [
    ("before_forward", "after_forward"),
    ("before_train_batch", "after_train_batch"),
    ("epoch_start", "epoch_end"),
    ("fit_start", "fit_end"),
    ("eval_start", "eval_end"),
    ("eval_before_forward", "eval_after_forward"),
]
WHERE = {
    "eval": "after 2 batches", "epoch": "after 2 batches", "fit": "after 2 batches",
    "eval_forward": "of evaluation batch 0 after 2 batches",
}  # fmt: skip


def set_p(p):
    return lambda event, state: setattr(state.model[3], "p", p[event.is_after_event])


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_an_algorithm_that_does_not_restore_at_the_second_half_is_named_with_both_events(first, second):
    guilty = acting(set_p([0.5, 0.25]), first, second, writes=("model",))
    audit, messages = audited(guilty, model=net(), eval_dataloader=batches(8))
    finding = audit.findings[0]
    where = WHERE.get(finding.event.canonical_name, "of batch 0")
    assert messages[0] == (
        f"Faulty changed model (3.p) at {first.upper()} and did not restore it at {second.upper()} {where}: "
        "put back exactly what was there"
    )


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_an_algorithm_that_restores_causes_no_finding(first, second):
    honest = acting(set_p([0.5, 0.0]), first, second, writes=("model",))
    assert audited(honest, model=net(), eval_dataloader=batches(8, 8))[1] == []


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_an_algorithm_that_does_not_run_at_the_second_half_is_named(first, second):
    guilty = acting(set_p([0.5]), first, second, writes=("model",), match=lambda event, state: event == first)
    audit, messages = audited(guilty, model=net(), eval_dataloader=batches(8))
    where = WHERE.get(audit.findings[0].event.canonical_name, "of batch 0")
    assert messages == [
        (
            f"Faulty changed model (3.p) at {first.upper()} and did not run at {second.upper()} {where} to restore it: "
            "match must be true at both events"
        )
    ]


def test_an_algorithm_that_lists_only_one_half_owes_nothing_there():
    assert audited(acting(set_p([0.5]), "before_loss", writes=("model",)), model=net())[1] == []
    assert audited(acting(set_p([0.5, 0.5]), "before_loss", "after_forward", writes=("model",)), model=net())[1] == []


def test_nearly_the_same_bits_are_not_restored():
    def double(event, state):
        factor = 3.0 if event.is_before_event else 1 / 3
        state.batch_set_item(0, state.batch[0] * factor)

    assert audited(acting(double, "before_forward", "after_forward", writes=("batch",)))[1] == [
        (
            "Faulty changed batch ([0]) at BEFORE_FORWARD and did not restore it at AFTER_FORWARD of batch 0: "
            "put back exactly what was there"
        )
    ]


def test_what_the_step_itself_has_replaced_since_need_not_come_back():
    def write(event, state):
        if event == "before_loss":
            state.loss = "none yet"
            for parameter in state.model.parameters():
                parameter.grad = None

    assert audited(acting(write, "before_loss", "after_loss", writes=("loss", "model")))[1] == []


def test_what_another_algorithm_has_changed_since_is_not_held_against_the_first():
    saved = []

    def first(event, state):
        if event == "eval_start":
            saved.append(state.model[3].p)
            state.model[3].p = 0.5
        else:
            state.model[3].p = saved.pop()

    def second(event, state):
        if event == "eval_start":
            state.model[3].p = 0.7

    honest = acting(first, "eval_start", "eval_end", writes=("model",), name="Honest", before=("faulty",))
    other = acting(second, "eval_start", "eval_end", writes=("model",))
    assert audited(honest, other, model=net(), eval_dataloader=batches(8))[1] == []
