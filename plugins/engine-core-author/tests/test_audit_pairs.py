"""What an algorithm changes at the first half of a pair has to be back after its second half, also if one fails."""

import pytest
from parts import acting, batches, net, trainer

from engine_core import Engine, Event, Logger, State
from engine_core.errors import AuditWarning
from engine_core_author.audit_callback import Audit

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


@pytest.mark.parametrize(
    ("p", "runs_at_both", "fault"),
    [
        ([0.5, 0.0], True, None),
        ([0.5, 0.25], True, "did not restore it at {} {}: put back exactly what was there"),
        ([0.5], False, "did not run at {} {} to restore it: match must be true at both events"),
    ],
)
@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_an_algorithm_that_does_not_restore_at_the_second_half_is_named_with_both_events(
    first, second, p, runs_at_both, fault
):
    match = lambda event, state: runs_at_both or event == first  # noqa: E731
    _, messages = audited(
        acting(set_p(p), first, second, writes=("model",), match=match), model=net(), eval_dataloader=batches(8, 8)
    )
    told = fault and fault.format(second.upper(), WHERE.get(Event(first).canonical_name, "of batch 0"))
    assert messages == ([f"Faulty changed model (3.p) at {first.upper()} and {told}"] if told else [])


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


LEFT = (
    "Faulty changed model (3.p) at BEFORE_FORWARD and did not run at AFTER_FORWARD of batch 0 to restore it after "
    "something between the two had failed: match must be true at both events then too, and a step of your own loop "
    "must run inside engine.restoring()"
)


class InterruptError(Exception):
    pass


def at_both(event, state):
    return True


def at_first(event, state):
    return event == "before_forward"


def setting_p(restore, match=at_both):
    """Return an algorithm that sets the p of a net's dropout for the forward pass."""

    def act(event, state):
        if event == "before_forward":
            state.model[3].p = 0.5
        elif restore:
            state.model[3].p = 0.0

    return acting(act, "before_forward", "after_forward", writes=("model",), match=match)


def failing_net():
    """Return a net that fails in its first forward pass, and no more."""
    model = net()

    def interrupt(module, args):
        handle.remove()
        raise InterruptError

    handle = model[0].register_forward_pre_hook(interrupt)
    return model


def found_after(algorithm, **settings):
    audit = Audit(**settings)
    with pytest.raises(InterruptError):
        audited(algorithm, audit=audit, model=failing_net())
    return [str(finding) for finding in audit.findings]


def test_after_an_exception_the_second_half_is_held_to_the_same():
    assert found_after(setting_p(restore=False)) == [
        (
            "Faulty changed model (3.p) at BEFORE_FORWARD and did not restore it at AFTER_FORWARD of batch 0: "
            "put back exactly what was there"
        )
    ]


@pytest.mark.parametrize("on_finding", ["warn", "error"])
def test_an_algorithm_that_does_not_match_after_an_exception_is_found_when_the_engine_closes(on_finding, caplog):
    assert found_after(setting_p(restore=True, match=at_first), on_finding=on_finding) == [LEFT]
    assert caplog.messages == []


def test_an_algorithm_that_does_not_match_after_an_exception_is_found_when_fit_starts_again():
    model = failing_net()
    audit = Audit()
    with trainer(model=model, algorithms=[setting_p(restore=True, match=at_first)], callbacks=[audit]) as made:
        with pytest.raises(InterruptError):
            made.fit()
        assert audit.findings == []
        made.state.algorithms.clear()
        with pytest.warns(AuditWarning) as caught:
            made.fit()
    assert [str(warning.message) for warning in caught] == [LEFT]


def test_what_begins_at_the_start_of_the_second_fit_is_not_held_against_it():
    def act(event, state):
        state.model[3].p = 0.5 if event == "fit_start" else 0.0

    model = failing_net()
    honest = acting(act, "fit_start", "fit_end", writes=("model",))
    audit = Audit()
    with trainer(model=model, algorithms=[honest], callbacks=[audit]) as made:
        with pytest.raises(InterruptError):
            made.fit()
        made.fit()
    assert audit.findings == []


def test_an_algorithm_that_begins_again_without_having_restored_is_found_in_a_custom_loop():
    state = State(model=net(), algorithms=[setting_p(restore=True)], callbacks=[Audit()])
    with Engine(state, Logger()) as engine:
        engine.run_event("before_forward")
        state.timestamp = state.timestamp.to_next_batch()
        with pytest.warns(AuditWarning) as caught:
            engine.run_event("before_forward")
        engine.run_event("after_forward")
    assert [str(warning.message) for warning in caught] == [LEFT]


def test_a_custom_loop_that_restores_causes_no_finding():
    audit = Audit()
    state = State(model=net(), algorithms=[setting_p(restore=True)], callbacks=[audit])
    with Engine(state, Logger()) as engine:
        with pytest.raises(InterruptError), engine.restoring():
            engine.run_event("before_forward")
            raise InterruptError
        engine.run_event("before_forward")
        engine.run_event("after_forward")
    assert audit.findings == []
