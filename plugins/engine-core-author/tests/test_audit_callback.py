"""The callback `audit`: its arguments, what it keeps and counts, and that it leaves training as it is."""

import copy
import warnings

import pytest
import torch
from parts import Memory, acting, batches, net, same, trainer

from engine_core.errors import ArgumentError, ArgumentTypeError, AuditWarning
from engine_core_author.audit_callback import Audit

from .audits import audited

KNOWN = "known: batch, loss, loss_fn, metrics, model, optimizers, outputs, schedulers"


def halve(event, state):
    state.loss = state.loss / 2


def test_each_kind_of_finding_is_one_warning_and_all_are_counted():
    audit, messages = audited(acting(halve, "after_loss"), max_duration="3ep")
    assert len(messages) == 1
    assert [str(finding) for finding in audit.findings] == messages
    assert audit.counts == {("Faulty", "undeclared_write", "loss", "after_loss"): 6}


def test_the_number_of_findings_is_logged_at_the_end_of_fit():
    memory = Memory()
    audited(acting(halve, "after_loss"), loggers=[memory])
    audited(loggers=[memory])
    assert memory.values("audit/findings") == [(2, 2), (2, 0)]


def test_as_an_error_a_finding_stops_training_with_the_same_words():
    with pytest.raises(AuditWarning) as error:
        audited(acting(halve, "after_loss"), audit=Audit(on_finding="error"))
    message, note = str(error.value), error.value.__notes__
    assert message.startswith("Faulty changed loss at AFTER_LOSS of batch 0 without declaring it: don't change it")
    assert note == ["raised by around_apply of callback Audit around algorithm Faulty at AFTER_LOSS"]


def test_only_the_fields_that_were_asked_for_are_compared():
    audit = Audit("batch")
    assert audited(acting(halve, "after_loss"), audit=audit)[1] == []
    assert audit.fields == ("batch",)


def test_between_intervals_nothing_is_compared():
    seen = []

    def write(event, state):
        seen.append(state.timestamp.batch)
        state.outputs = None

    audit, _ = audited(acting(write, "after_loss"), audit=Audit(interval="3ba"), data=batches(*[4] * 7))
    assert (len(seen), audit.counts.total()) == (7, 3)


def test_a_pair_of_a_batch_is_compared_whole_and_what_is_between_batches_always():
    seen = []

    def spoil(event, state):
        state.metrics = {**state.metrics, event.canonical_name: len(seen)}
        seen.append(event)

    pairs = [("batch_start", "batch_end"), ("epoch_start", "epoch_end"), ("eval_start", "eval_end")]
    algorithms = [acting(spoil, *pair, writes=("metrics",), name=pair[0]) for pair in pairs]
    audit, _ = audited(
        *algorithms, audit=Audit(interval="2ba"), model=net(), data=batches(*[4] * 3), eval_dataloader=batches(4)
    )
    assert audit.counts == {
        ("batch_start", "not_restored", "metrics", "batch_end"): 2,
        ("epoch_start", "not_restored", "metrics", "epoch_end"): 1,
        ("eval_start", "not_restored", "metrics", "eval_end"): 1,
    }


def test_in_an_evaluation_its_own_batches_count():
    algorithm = acting(lambda event, state: setattr(state, "outputs", None), "eval_batch_end")
    audit, _ = audited(algorithm, audit=Audit(interval="2ba"), data=batches(4), eval_dataloader=batches(4, 4, 4))
    assert [finding.eval_batch for finding in audit.findings] == [0]
    assert audit.counts.total() == 2


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"fields": ["los"]}, ArgumentError, "the audit can't compare 'los'; did you mean 'loss'?"),
        ({"fields": ["seed!"]}, ArgumentError, f"the audit can't compare 'seed!'; {KNOWN}"),
        ({"fields": []}, ArgumentError, f"the audit has no fields to compare; {KNOWN}"),
        ({"fields": 3}, ArgumentTypeError, f"the audit's fields are a list of names, not 3; {KNOWN}"),
        ({"interval": "1ep"}, ArgumentError, "the audit's interval is a number of batches such as '100ba', not '1ep'"),
        ({"on_finding": "log"}, ArgumentError, "the audit's on_finding is 'warn' or 'error', not 'log'"),
    ],
)
def test_an_invalid_argument_is_refused(arguments, error, message):
    with pytest.raises(error) as caught:
        Audit(**arguments)
    assert str(caught.value) == message


def test_an_interval_that_is_not_a_length_is_refused_by_the_name_of_the_argument():
    with pytest.raises(ArgumentTypeError, match=r"^the audit's interval: a bare number has no unit"):
        Audit(interval=100)


def run(audit, **settings):
    model = net(0.5)
    swaps = []

    def swap(event, state):
        if event == "eval_start":
            swaps.append(copy.deepcopy(state.model.state_dict()))
        else:
            state.model.load_state_dict(swaps.pop())

    def scale(event, state):
        state.batch_set_item(0, state.batch[0] * 1.5)

    algorithms = [
        acting(swap, "eval_start", "eval_end", writes=("model",)),
        acting(scale, "after_dataloader", writes=("batch",)),
    ]
    torch.manual_seed(3)
    given = {
        "optimizers": lambda p: torch.optim.Adam(p, lr=0.01),
        "schedulers": lambda o: torch.optim.lr_scheduler.StepLR(o, 1),
        "eval_dataloader": batches(8),
        "eval_interval": "1ba",
        "callbacks": [audit] if audit else [],
        **settings,
    }
    with trainer(batches(8, 8, 8), model, seed=7, algorithms=algorithms, max_duration="2ep", **given) as made:
        made.fit()
    return {"model": model.state_dict(), "optimizer": made.state.optimizers[0].state_dict(), "drawn": torch.rand(1)}


@pytest.mark.filterwarnings("ignore:BatchNorm .* each microbatch:UserWarning")
@pytest.mark.parametrize(
    "settings",
    [{}, {"microbatch_size": 4, "precision": "amp_bf16", "grad_clip_norm": 0.1}],
    ids=["plain", "microbatches in bf16, clipped"],
)
def test_a_run_under_audit_ends_with_the_same_bits(settings):
    with warnings.catch_warnings():
        warnings.simplefilter("error", AuditWarning)
        under_audit = run(Audit(), **settings)
    assert same(under_audit, run(None, **settings))


def test_a_new_run_begins_without_findings():
    audit, _ = audited(acting(halve, "after_loss"))
    assert audit.findings
    audited(audit=audit)
    assert (audit.findings, dict(audit.counts)) == ([], {})


def test_a_first_half_may_stay_alone_where_the_second_never_comes():
    def write(event, state):
        state.metrics = {**state.metrics, event.value: 1.0}

    algorithm = acting(write, "epoch_start", "epoch_end", "before_dataloader", "after_dataloader", writes=("metrics",))
    algorithm.match = lambda event, state: event in ("epoch_start", "before_dataloader")
    audit, _ = audited(algorithm, max_duration="1ba")
    assert audit.counts == {("Faulty", "not_restored", "metrics", "after_dataloader"): 1}
