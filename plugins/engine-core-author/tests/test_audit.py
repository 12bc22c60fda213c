"""Audit mode names the algorithm that breaks a promise about State: what, where, and what to do, in full sentences."""

import importlib

import pytest
import torch
from parts import acting, batches, net, rows
from torch import nn

from engine_core_author.audit_callback import Audit

from .audits import audited


def hook(module, args, output):
    """Change nothing."""


def forget_last(s):
    s.optimizers[0].state.pop(s.optimizers[0].param_groups[0]["params"].pop())


def push(s):
    s.optimizers[0].state[s.model[0].weight]["momentum_buffer"].add_(1)


WRITES = {
    "batch ([1])": lambda s: s.batch_set_item(1, (s.batch[1] + 1) % 3),
    "outputs": lambda s: setattr(s, "outputs", 1.0),
    "loss": lambda s: setattr(s, "loss", 0.5),
    "model (0.weight)": lambda s: s.model[0].weight.data.mul_(2),
    "model (0.weight and 0.bias)": lambda s: s.model[0].requires_grad_(False),
    "model (0.bias.grad)": lambda s: setattr(s.model[0].bias, "grad", torch.ones(6)),
    "model (0.forward_hooks)": lambda s: s.model[0].register_forward_hook(hook),
    "model (0.weight.backward_hooks)": lambda s: s.model[0].weight.register_hook(torch.sign),
    "outputs (backward_hooks)": lambda s: s.outputs.register_hook(torch.sign),
    "optimizers ([0]/optimizer_step_pre_hooks)": lambda s: s.optimizers[0].register_step_pre_hook(print),
    "model (1.running_mean)": lambda s: s.model[1].running_mean.add_(1),
    "model (1.training)": lambda s: s.model[1].eval(),
    "model (3.p)": lambda s: setattr(s.model[3], "p", 0.5),
    "model (2)": lambda s: setattr(s.model[2], "__class__", nn.Sigmoid),
    "model (0.training, 1.training, 2.training and 2 more)": lambda s: [m.eval() for m in s.model],
    "optimizers ([0]/param_groups[0]/lr)": lambda s: s.optimizers[0].param_groups[0].update(lr=0.01),
    "optimizers ([0]/param_groups[0]/params, [0]/state[5] and [0]/state[5]/momentum_buffer)": forget_last,
    "optimizers ([0]/state[0]/momentum_buffer)": push,
    "schedulers ([0]/last_epoch)": lambda s: setattr(s.schedulers[0], "last_epoch", 7),
    "metrics (mine)": lambda s: s.metrics.update(mine=1.0),
    "loss_fn (label_smoothing)": lambda s: setattr(s.loss_fn, "label_smoothing", 0.1),
}  # fmt: skip


@pytest.mark.parametrize("what", WRITES)
def test_an_undeclared_write_is_named_with_field_leaf_event_batch_and_remedy(what):
    done = []
    act = lambda event, state: done.append(WRITES[what](state)) if state.timestamp.batch and not done else None  # noqa: E731
    settings = {
        "optimizers": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        "schedulers": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 9),
    }
    _, messages = audited(acting(act, "batch_end"), model=net(), **settings)
    assert messages == [undeclared("Faulty", what, "BATCH_END")]


def test_what_is_declared_may_be_written_and_does_not_cover_another_field():
    def write(event, state):
        state.loss, state.outputs = state.loss / 2, None

    assert audited(acting(write, "after_loss", writes=("loss", "outputs")))[1] == []
    assert audited(acting(write, "after_loss", writes=("loss",)))[1] == [
        undeclared("Faulty", "outputs").replace("('outputs',)", "('loss', 'outputs')")
    ]


def undeclared(name, field, event="AFTER_LOSS"):
    return (
        f"{name} changed {field} at {event} of batch 0 without declaring it: "
        f"don't change it, or declare writes=('{field.partition(' ')[0]}',)"
    )


def halve(event, state):
    state.loss = state.loss / 2


def test_an_algorithm_that_declares_nothing_and_changes_something_is_a_finding_and_else_it_is_listed():
    audit, messages = audited(acting(halve, "after_loss", writes=None), acting(halve, "after_loss", writes=("loss",)))
    assert (messages, audit.not_declared) == ([undeclared("Faulty", "loss")], [])
    assert (audit.findings[0].kind, audit.findings[0].writes) == ("undeclared_write", None)
    audit, messages = audited(acting(lambda event, state: None, "after_loss", writes=None))
    assert (messages, audit.not_declared) == ([], ["Faulty"])


def test_two_instances_of_one_class_are_distinguished():
    messages = audited(acting(halve, "after_loss", writes=("loss",)), acting(halve, "after_loss"))[1]
    assert [message.split()[0] for message in messages] == ["Faulty-2"]


def test_the_distribution_of_the_offender_is_named_with_its_version(install):
    module = """
        from engine_core import Algorithm, AlgorithmMetadata

        class Halve(Algorithm):
            metadata = AlgorithmMetadata(events=("after_loss",), writes=())

            def match(self, event, state):
                return True

            def apply(self, event, state, logger):
                state.loss = state.loss / 2
    """
    install("halving", {"algorithms": {"halve": "halving:Halve"}}, {"halving": module}, version="2.1")
    audit, messages = audited("halve")
    assert messages == [undeclared("Halve (halving 2.1)", "loss")]
    assert str(audit.findings[0].origin) == "halving 2.1"


@pytest.mark.parametrize(
    ("event", "where"),
    [
        ("init", "at INIT after 0 batches"),
        ("after_dataloader", "at AFTER_DATALOADER of batch 0"),
        ("epoch_end", "at EPOCH_END after 2 batches"),
        ("eval_before_forward", "at EVAL_BEFORE_FORWARD of evaluation batch 0 after 2 batches"),
        ("fit_end", "at FIT_END after 2 batches"),
    ],
)
def test_the_place_is_given_by_event_and_batch(event, where):
    def write(event, state):
        state.metrics = {"mine": len(state.metrics) + 1.0}

    (message,) = audited(acting(write, event), eval_dataloader=batches(8))[1]
    assert f" {where} without declaring it" in message


def test_what_an_instance_declares_for_itself_counts():
    algorithms = [acting(lambda event, state: state.batch_set_item(1, state.batch[1] + 1), "batch_end") for _ in "ab"]
    algorithms[0].metadata = algorithms[0].metadata.replace(writes=("batch",))
    assert [message.partition(" ")[0] for message in audited(*algorithms)[1]] == ["Faulty-2"]


def test_the_microbatch_is_counted():
    def write(event, state):
        if len(state.batch[0]) == 2:
            state.outputs = None

    audit, messages = audited(acting(write, "after_loss"), data=[rows(8)], microbatch_size=3)
    assert messages == [undeclared("Faulty", "outputs").replace("batch 0", "batch 0, microbatch 2")]
    assert (audit.findings[0].batch, audit.findings[0].repeat) == (0, 2)


def test_an_algorithm_that_raises_is_not_judged_and_its_error_passes_through():
    def fail(event, state):
        state.loss = None
        raise KeyError("mine")

    audit = Audit()
    with pytest.raises(KeyError, match="'mine'") as error:
        audited(acting(fail, "after_loss"), audit=audit)
    assert audit.findings == []
    assert error.value.__context__ is None and error.value.__cause__ is None


@pytest.mark.parametrize(
    ("former", "name"),
    [
        ("testing", "AlgorithmConformance"),
        ("audit", "Observer"),
        ("callbacks.audit", "Audit"),
        ("doctor", "examine"),
        ("scaffold", "create_plugin"),
    ],
)
def test_a_former_name_is_an_alias_that_says_where_it_is_now(former, name):
    with pytest.warns(DeprecationWarning, match=rf"engine_core\.{former}\.{name} .* from engine_core_author"):
        found = getattr(importlib.import_module(f"engine_core.{former}"), name)
    assert found.__module__.startswith("engine_core_author")
