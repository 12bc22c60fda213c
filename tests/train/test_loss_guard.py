"""Losses and gradients that are not finite: a warning, a skipped step, a stop, or a rollback."""

import warnings
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from engine_core import Engine, Logger, State
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.callbacks.loss_guard import LossGuard
from engine_core.errors import ArgumentError, EngineError, NonFiniteLossError, NonFiniteLossWarning

from .parts import Memory, at, batches, net, same, trainer

NAN = float("nan")


def spoiled(*bad, value=NAN, count=10):
    """Return batches, in some of which a number is not finite."""
    data = batches(*[8] * count)
    for place in bad:
        data[place][0][3, 2] = value
    return data


def without(*places):
    return [batch for place, batch in enumerate(spoiled()) if place not in places]


def exploding(*bad):
    """Return a callback that gives some batches an infinite gradient, and leaves the loss as it is."""
    grad = lambda state: state.model[0].weight.grad  # noqa: E731
    return at("after_backward", lambda state: state.timestamp.batch in bad and grad(state)[1, 2].fill_(float("inf")))


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.05)


def fitted(data, *callbacks, **settings):
    with trainer(data, net(), optimizers=adam, callbacks=[*callbacks], **settings) as made:
        made.fit()
    return made


def learned(made):
    return dict(made.state.model.state_dict()), made.state.optimizers[0].state_dict()


@pytest.mark.parametrize(("bad", "value"), [((0,), NAN), ((9,), NAN), ((2, 3, 7), float("inf"))])
def test_a_skipped_batch_is_as_if_it_had_not_been(bad, value):
    with pytest.warns(NonFiniteLossWarning):
        made = fitted(spoiled(*bad, value=value), LossGuard("skip"))
    assert same(learned(made), learned(fitted(without(*bad))))
    assert made.state.timestamp.batch == 10


def test_a_batch_is_skipped_whose_gradients_alone_are_not_finite():
    with pytest.warns(NonFiniteLossWarning, match=r"^the gradient of 0.weight is not finite \(with a loss of 1"):
        made = fitted(spoiled(), exploding(3), LossGuard())
    assert same(learned(made), learned(fitted(without(3))))


@pytest.mark.filterwarnings("ignore:BatchNorm .* each microbatch:UserWarning")
@pytest.mark.parametrize(
    "settings", [{"microbatch_size": 3}, {"precision": "amp_bf16"}, {"grad_clip_norm": 0.1}], ids=str
)
def test_it_skips_whatever_the_settings(settings):
    with pytest.warns(NonFiniteLossWarning):
        made = fitted(spoiled(5), LossGuard("skip"), **settings)
    assert same(learned(made), learned(fitted(without(5), **settings)))


def test_one_warning_names_batch_and_policy_and_each_skipped_batch_is_counted():
    memory = Memory()
    with pytest.warns(NonFiniteLossWarning) as caught:
        fitted(spoiled(2, 6), LossGuard("skip"), loggers=memory)
    says = "the loss is nan at batch {} (epoch 0); its step is skipped"
    assert [str(w.message) for w in caught] == [says.format(2), says.format(6)]
    assert memory.values("loss_guard/skipped") == [(2, 1), (6, 2)]


def test_schedulers_step_on_with_the_clock_and_do_not_warn_about_a_first_step_that_was_skipped():
    schedulers = [(lambda o: lr_scheduler.ExponentialLR(o, 0.5), "1ba")]
    with pytest.warns(NonFiniteLossWarning) as caught:
        made = fitted(spoiled(0), LossGuard("skip"), schedulers=schedulers)
    assert len(caught) == 1
    assert made.state.optimizers[0].param_groups[0]["lr"] == 0.05 * 0.5**10


def test_beyond_the_limit_of_batches_in_a_row_it_stops():
    made = trainer(spoiled(1, 3, 4, 5, 6), net(), callbacks=LossGuard("skip", limit=3))
    says = r"^the loss is nan at batch 6 \(epoch 0\), and loss_guard has skipped 3 batches in a row, its limit"
    with made, pytest.warns(NonFiniteLossWarning), pytest.raises(NonFiniteLossError, match=says):
        made.fit()


def test_it_stops_before_the_step_with_weights_and_statistics_of_the_batch_before():
    made = trainer(spoiled(4), net(), optimizers=adam, callbacks=LossGuard("stop"))
    says = r"^the loss is nan at batch 4 \(epoch 0\); the step was not taken"
    with made, pytest.raises(NonFiniteLossError, match=says):
        made.fit()
    assert same(learned(made), learned(fitted(spoiled()[:4])))


def test_a_gradient_of_which_only_the_sum_overflows_is_finite():
    large = at("after_backward", lambda state: state.model[0].weight.grad.fill_(3e38))
    with trainer(spoiled(), net(), max_duration="1ba", callbacks=[large, LossGuard("stop")]) as made:
        made.fit()


def test_sparse_gradients_are_checked_too():
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True))
    data = [(torch.tensor([1, 1, 2]), torch.tensor([0, 1, 2]))] * 3
    with trainer(data, model, max_duration="2ep", callbacks=LossGuard("stop")) as made:
        made.fit("1ep")
        model[0].weight.data[1, 1] = NAN
        with pytest.raises(NonFiniteLossError):
            made.fit()


def test_the_policy_is_one_of_four_and_a_rollback_without_a_saver_is_refused_at_the_start():
    with pytest.raises(ArgumentError, match="policy='rolback' is unknown; did you mean 'rollback'"):
        LossGuard("rolback")
    with pytest.raises(ArgumentError, match="limit=0"):
        LossGuard(limit=0)
    with (
        trainer(callbacks=LossGuard("rollback")) as made,
        pytest.raises(ArgumentError, match=r"add \('checkpoint_saver'"),
    ):
        made.fit()


def rolled_back(folder, data, *callbacks, interval="3ba", **settings):
    saver = CheckpointSaver(folder, interval, keep_last=None)
    return fitted(data, saver, LossGuard("rollback"), *callbacks, **settings)


def test_it_continues_from_the_latest_checkpoint_with_the_data_that_follows(tmp_path):
    with pytest.warns(NonFiniteLossWarning, match=f"restored from {tmp_path / 'ep0-ba3'}$"):
        made = rolled_back(tmp_path, spoiled(5))
    # what came between the checkpoint and the loss is left out
    assert same(learned(made), learned(fitted(without(3, 4, 5))))
    assert made.state.timestamp.batch == 10


@pytest.mark.parametrize(("interval", "kept"), [("1ba", 5), ("2ba", 4), ("3ba", 3)])
def test_each_further_batch_in_a_row_goes_back_one_checkpoint_more_and_to_none_saved_since(interval, kept, tmp_path):
    with pytest.warns(NonFiniteLossWarning) as caught:
        made = rolled_back(tmp_path, spoiled(6, 7), interval=interval)
    assert [str(w.message).rpartition("-")[2] for w in caught] == ["ba6", f"ba{kept}"]
    assert same(learned(made), learned(fitted([*spoiled()[:kept], *spoiled()[8:]])))


def test_the_latest_checkpoint_of_several_savers_counts_and_schedules_are_not_rolled_back(tmp_path):
    savers = [CheckpointSaver(tmp_path / "rare", "1ep"), CheckpointSaver(tmp_path / "often", "2ba")]
    schedulers = [(lambda o: lr_scheduler.ExponentialLR(o, 0.5), "1ba")]
    with pytest.warns(NonFiniteLossWarning, match="restored from .*often.*ep0-ba4$"):
        made = fitted(spoiled(5), *savers, LossGuard("rollback"), schedulers=schedulers)
    assert made.state.optimizers[0].param_groups[0]["lr"] == 0.05 * 0.5**10


def test_two_guards_that_skip_do_not_blame_the_loop():
    own = at("after_train_batch", lambda state: None if state.loss.isfinite() else state.skip_step())
    with pytest.warns(NonFiniteLossWarning):
        made = fitted(spoiled(3, 4), own, LossGuard(), LossGuard())
    assert same(learned(made), learned(fitted(without(3, 4))))


def test_a_model_whose_shape_the_first_batch_determines_can_be_guarded():
    model = nn.Sequential(nn.Linear(4, 3), nn.LazyBatchNorm1d())
    with trainer(spoiled(), model, max_duration="3ba", callbacks=LossGuard()) as made:
        made.fit()
    assert made.state.timestamp.batch == 3


@pytest.mark.parametrize(
    ("bad", "why"), [((1,), "is no regular checkpoint to go back to yet"), ((3, 4), "before that of batch 3, already")]
)
def test_without_a_checkpoint_to_go_back_to_it_stops(bad, why, tmp_path):
    made = trainer(spoiled(*bad), net(), callbacks=[CheckpointSaver(tmp_path, "3ba"), LossGuard("rollback")])
    with made, warnings.catch_warnings(), pytest.raises(NonFiniteLossError, match=why):
        warnings.simplefilter("ignore", NonFiniteLossWarning)
        made.fit()


def test_checkpoints_that_lie_ahead_are_not_restored(tmp_path):
    fitted(spoiled(), CheckpointSaver(tmp_path, "3ba", keep_last=None))
    with pytest.warns(NonFiniteLossWarning, match="restored from .*ep0-ba3$"):
        rolled_back(tmp_path, spoiled(4), load_path=tmp_path / "ep0-ba3", seed=None)


@pytest.mark.parametrize("policy", ["skip", "rollback"])
def test_a_run_that_was_guarded_is_resumed_exactly(policy, tmp_path):
    def run(folder, **settings):
        memory, saver = Memory(), CheckpointSaver(folder, "3ba", keep_last=None)
        with pytest.warns(NonFiniteLossWarning):
            made = fitted(spoiled(4, 7, 8), saver, LossGuard(policy), loggers=memory, seed=1, **settings)
        return learned(made), memory

    whole, logged = run(tmp_path)
    for place in (3, 6):
        rest, then = run(tmp_path, load_path=tmp_path / f"ep0-ba{place}")
        assert same(rest, whole)
        assert same(then.metrics, logged.metrics[len(logged.metrics) - len(then.metrics) :])


def test_a_custom_loop_that_steps_all_the_same_gets_an_error():
    model = nn.Linear(4, 3)
    engine = Engine(State(model=model, loss=torch.tensor(NAN), callbacks=[LossGuard()]), Logger())
    with engine, warnings.catch_warnings():
        warnings.simplefilter("ignore", NonFiniteLossWarning)
        engine.run_event("after_train_batch")
        engine.state.loop.skip_requested = False  # as a loop does that has left it out
        engine.run_event("after_train_batch")
        with pytest.raises(EngineError, match="and it was ignored"):
            engine.run_event("after_train_batch")


def guarded(folder, *callbacks, bad, interval="4ba", keep_last=2, **settings):
    guards = [CheckpointSaver(folder, interval, keep_last=keep_last), LossGuard("rollback"), *callbacks]
    return trainer(spoiled(*bad, count=16), net(), max_duration="16ba", callbacks=guards, seed=1, **settings)


def weights(made):
    return dict(made.state.model.state_dict())


def went_back(made):
    """Fit and return the batches of the checkpoints that were restored."""
    with made, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        made.fit()
    return [str(warning.message).rpartition("-")[2] for warning in told]


@pytest.mark.parametrize(("keep_last", "pause", "bad"), [(1, 5, [6]), (2, 9, [10, 11])])
def test_a_pause_removes_no_checkpoint_that_is_restored_later(keep_last, pause, bad, tmp_path):
    whole = guarded(tmp_path / "whole", bad=bad, keep_last=keep_last)
    places = went_back(whole)
    pauses = at("batch_end", lambda state: state.pause_training() if state.timestamp.batch == pause else None)
    went_back(guarded(tmp_path / "run", pauses, bad=bad, keep_last=keep_last))
    resumed = guarded(tmp_path / "run", bad=bad, keep_last=keep_last, autoresume=True)
    assert went_back(resumed) == places
    assert len(places) == len(bad)
    assert same(weights(resumed), weights(whole))


def test_a_damaged_checkpoint_is_not_restored(tmp_path):
    made = guarded(tmp_path, bad=[9], interval="2ba")
    made.fit("5ba")
    (tmp_path / "ep0-ba2" / "manifest.json").write_text("{")
    assert went_back(made) == ["ba8"]


class Averaging(nn.Linear):
    """A model that assigns its buffer anew in each step, fills or registers others in the first, and expands one."""

    def __init__(self):
        super().__init__(4, 3)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("wide", torch.zeros(3).expand(2, 3))
        self.register_buffer("cache", None)

    def forward(self, inputs):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * inputs.detach().mean(0)
            if self.cache is None:
                self.cache = inputs.detach().sum()
            if not hasattr(self, "first"):
                self.register_buffer("first", inputs.detach().sum())
        return super().forward(inputs + 0 * self.mean * self.first)


@pytest.mark.parametrize("bad", [0, 3])
def test_buffers_are_put_back_however_they_are_changed(bad):
    ends = []
    for data, callbacks in ((spoiled(bad), LossGuard(limit=1)), (without(bad), [])):
        torch.manual_seed(3)
        told = pytest.warns(NonFiniteLossWarning) if callbacks else nullcontext()
        with trainer(data, Averaging(), callbacks=callbacks) as made, told:
            made.fit()
        ends.append(weights(made))
    assert same(*ends)


class Weighted(nn.Module):
    """A loss with a parameter that is trained, and an average of what it was."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, outputs, targets):
        loss = nn.functional.cross_entropy(outputs, targets)
        self.mean.lerp_(loss.detach(), 0.1)
        return self.scale * loss + (self.scale - 0.5) ** 2 + 0.01 * self.mean * self.scale


def with_a_loss(*callbacks, loss, **settings):
    adam = lambda parameters: torch.optim.Adam([*parameters, *loss.parameters()], lr=0.1)  # noqa: E731
    return trainer(spoiled(), net(), loss_fn=loss, optimizers=adam, callbacks=[*callbacks], seed=1, **settings)


def test_gradients_and_buffers_of_the_loss_function_are_guarded():
    def explode(state):
        if state.timestamp.batch == 4:
            loss.mean.fill_(NAN)
            loss.scale.grad.fill_(NAN)

    loss = Weighted()
    made = with_a_loss(at("after_backward", explode), LossGuard(limit=1), loss=loss)
    with made, pytest.warns(NonFiniteLossWarning, match="the gradient of scale is not finite"):
        made.fit()
    assert loss.scale.isfinite() and loss.mean.isfinite()


def test_warning_is_what_the_trainer_does_and_covers_gradients_too():
    with pytest.warns(NonFiniteLossWarning) as caught:
        fitted(spoiled(7), exploding(3), LossGuard("warn"))
    assert [str(w.message).partition(";")[0] for w in caught] == [
        "the gradient of 0.weight is not finite (with a loss of 1.383) at batch 3 (epoch 0)",
        "the training loss is nan at batch 4 (epoch 0)",
    ]


def test_a_loss_function_with_its_own_state_is_resumed_exactly(tmp_path):
    whole, rest = Weighted(), Weighted()
    with with_a_loss(CheckpointSaver(tmp_path, "4ba"), loss=whole) as made:
        made.fit()
    with with_a_loss(loss=rest, load_path=tmp_path / "ep0-ba4") as resumed:
        resumed.fit()
    assert same(weights(resumed), weights(made))
    assert same(dict(rest.state_dict()), dict(whole.state_dict()))
