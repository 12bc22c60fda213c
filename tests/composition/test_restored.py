"""What changes batch, loss, weights or flags for a while restores them: in training, evaluation and when it raises."""

import pytest
import torch
from torch.nn import functional as F

from engine_core import Callback, Engine, Logger, State

from .conftest import BATCHES, NAMES, VARIANTS, data_for, digits_net, make, trainer_of, weights

# The first two exclude ema, the third MixUp, the fourth the gradient penalty; with all others, this training diverges
# with whitened inputs, and with images of 3 x 3 pixels.
TOGETHER = [name for name in NAMES if name not in ("swa", "lawa", "info_batch", "compile", "whitened_stem", "col_out")]
OTHERS = [[variant, *(name for name in TOGETHER if name != own)] for variant, (own, _) in VARIANTS.items()]
ALONE = [pytest.param([name], marks=pytest.mark.full) for name in (*NAMES, *VARIANTS)]
GROUPS = [*ALONE, TOGETHER, *OTHERS]
LABELS = [*NAMES, *VARIANTS, "all together", *(f"all with {variant}" for variant in VARIANTS)]


def snapshot(state):
    """Return copies of the batch in work and of all that belongs to the model."""
    assert state.model is not None
    modules = dict(state.model.named_modules())
    return {
        "batch": [part.clone() for part in state.batch],
        "weights": {name: value.detach().clone() for name, value in state.model.state_dict().items()},
        "training": {name: module.training for name, module in modules.items()},
        "requires_grad": {name: p.requires_grad for name, p in state.model.named_parameters()},
    }


def differing(was, state):
    """Return what is not bit-equal to a snapshot."""
    now = snapshot(state)
    found = [f"batch[{i}]" for i, (a, b) in enumerate(zip(was["batch"], now["batch"], strict=True)) if not same(a, b)]
    found += [name for name in now["weights"] if not same(was["weights"][name], now["weights"][name])]
    return found + [kind for kind in ("training", "requires_grad") if was[kind] != now[kind]]


def same(one, other):
    return one.dtype == other.dtype and one.requires_grad == other.requires_grad and torch.equal(one, other)


def calling(event, call):
    """Return a callback that makes this call at one event."""
    return type("Calling", (Callback,), {event: lambda self, state, logger: call(state)})()


@pytest.mark.parametrize("names", [TOGETHER, *OTHERS], ids=LABELS[-5:])
def test_the_loaders_tensors_stay_and_an_evaluation_leaves_weights_and_modes(names):
    stays_as_it_was(names)


@pytest.mark.full
@pytest.mark.parametrize(
    "names", [TOGETHER, *OTHERS, *([name] for name in (*NAMES, *VARIANTS))], ids=[*LABELS[-5:], *LABELS[:-5]]
)
def test_no_promise_about_writing_and_restoring_is_broken(names):
    stays_as_it_was(names, callbacks=["audit"])  # its warnings are errors here


def stays_as_it_was(names, **options):
    loaded = [tuple(part.clone() for part in batch) for batch in BATCHES]
    with trainer_of([make(name) for name in names], eval_interval="3ba", **options) as trainer:
        trainer.fit()
        before = weights(trainer)
        modes = {name: module.training for name, module in trainer.state.model.named_modules()}
        trainer.eval()
        after = weights(trainer)
    assert trainer.state.loss.isfinite()
    assert [name for name in before if not same(before[name], after[name])] == []
    assert modes == {name: module.training for name, module in trainer.state.model.named_modules()}
    assert all(same(a, b) for was, now in zip(loaded, BATCHES, strict=True) for a, b in zip(was, now, strict=True))


class Failing:
    """A cross entropy that raises at one call."""

    def __init__(self, call):
        self.call, self.calls = call, 0

    def __call__(self, outputs, targets, reduction="mean"):
        self.calls += outputs.requires_grad  # scoring and evaluation do not count
        if outputs.requires_grad and self.calls == self.call:
            raise ZeroDivisionError
        return F.cross_entropy(outputs, targets, reduction=reduction)


@pytest.mark.filterwarnings("ignore:BatchNorm .* each microbatch:UserWarning")
@pytest.mark.parametrize("microbatch_size", [None, 10])
@pytest.mark.parametrize("names", GROUPS, ids=LABELS)
def test_the_model_that_a_step_began_with_is_there_again_when_its_loss_raises(names, microbatch_size):
    for call in (1, 2, 4):  # with sam the second is that of the second pass
        kept = []  # what a step began with; frozen layers are frozen by then
        keep = calling("batch_start", lambda state, kept=kept: kept.append(snapshot(state)))
        options = {"callbacks": [keep], "loss_fn": Failing(call), "microbatch_size": microbatch_size}
        with trainer_of([make(name) for name in names], **options) as trainer:
            with pytest.raises(ZeroDivisionError):
                trainer.fit()
            moved = differing(kept[-1], trainer.state)
            assert [name for name in moved if "running" not in name and "num_batches" not in name] == []


def moved_by_hand(algorithms, failing_at):
    """Raise in a step of a loop that puts nothing back itself; return what differs from before the step."""

    def fire(engine, *events):
        for event in events:
            engine.run_event(event)
            if event == failing_at:
                raise ZeroDivisionError

    model = digits_net()
    state = State(model, torch.optim.SGD(model.parameters(), lr=0.1), loss_fn=F.cross_entropy, max_duration="9ba")
    state.algorithms, state.seed, state.batch, state.loop.closure = list(algorithms), 3, BATCHES[0], torch.zeros
    state.loop.peek = lambda: BATCHES[0]
    state.train_dataloader, state.loop.put_in_order = data_for(algorithms), list
    with Engine(state, Logger()) as engine:
        fire(engine, "init", "fit_start", "epoch_start", "after_dataloader", "batch_start")
        state.loss = torch.tensor(7.0)
        was, batch, loss = snapshot(state), state.batch, state.loss
        with pytest.raises(ZeroDivisionError), engine.restoring():
            fire(engine, "before_train_batch", "before_forward")
            state.outputs = model(state.batch[0])
            fire(engine, "after_forward", "before_loss")
        moved = [*(["batch"] if state.batch is not batch else []), *(["loss"] if state.loss is not loss else [])]
        return moved + differing(was, state)  # before the engine closes, which undoes what is left


@pytest.mark.parametrize("event", ["before_forward", "before_loss"])
@pytest.mark.parametrize("names", GROUPS, ids=LABELS)
def test_batch_and_loss_and_model_are_there_again_when_a_loop_by_hand_raises(names, event):
    moved = moved_by_hand([make(name) for name in names], event)
    assert [name for name in moved if "running" not in name and "num_batches" not in name] == []


@pytest.mark.parametrize("names", GROUPS, ids=LABELS)
def test_the_weights_are_there_again_when_an_evaluation_raises(names):
    fails = calling("eval_before_forward", lambda state: state.timestamp.epoch == 2 and 1 / 0)
    with trainer_of([make(name) for name in names], eval_interval="2ep") as trainer:
        trainer.fit()
        before = weights(trainer)
        trainer.state.callbacks.append(fails)
        with pytest.raises(ZeroDivisionError):
            trainer.eval()
        after = weights(trainer)
    assert [name for name in before if not same(before[name], after[name])] == []
