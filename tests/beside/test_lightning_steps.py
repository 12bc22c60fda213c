"""What Lightning does around a step is kept, and a step that can't be taken apart is refused by name."""

from __future__ import annotations

import copy

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch.nn import functional as F

from engine_core import Algorithm, AlgorithmMetadata, Event
from engine_core.errors import ArgumentError, EngineError, UnsupportedError
from engine_core_author.probes import at_events

from .cases import LEARNING_RATE, MOMENTUM, Differentiated, differences, ended, make_loaders, train_ours
from .lightning_runs import ITS_WARNINGS, Digits, make_callback, make_trainer

pytestmark = ITS_WARNINGS


def fit(case="none", *, module=None, at=(), does=None, **settings):
    """Train a case, where `does(event, state)` is called at some events; return what it left, and the callback."""
    module = Digits() if module is None else module
    callback = make_callback(case, callbacks=[at_events([*at], does)] if at else [])
    make_trainer([callback], **settings).fit(module, *make_loaders())
    return ended(module.net, callback.state, module.losses), callback


class AtStep(Algorithm):
    """Calls `does(state)` at AFTER_TRAIN_BATCH of one batch."""

    metadata = AlgorithmMetadata(events=("after_train_batch",), writes=())

    def __init__(self, batch, does):
        self.batch, self.does = batch, does

    def match(self, event, state):
        return event in self.metadata.events and state.timestamp.batch == self.batch

    def apply(self, event, state, logger):
        self.does(state)


@pytest.mark.parametrize("case", ["none", "sam", "layer_freezing"])
def test_gradients_are_clipped_before_after_train_batch(case):
    norms = []

    def measure(_, state):
        gradients = [p.grad for p in state.model.parameters() if p.grad is not None]
        norms.append(torch.cat([g.flatten() for g in gradients]).norm().item())

    left, _ = fit(case, at=[Event.AFTER_TRAIN_BATCH], does=measure, gradient_clip_val=0.5)

    assert differences(left, train_ours(case, grad_clip_norm=0.5)) == []
    assert len(norms) == 14 and max(norms) == pytest.approx(0.5, rel=1e-4)


def test_a_skipped_step_leaves_weights_momentum_and_decay_alone():
    class Decaying(Digits):
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM, weight_decay=0.1)

    module, seen = Decaying(), []

    def look(_, state):
        (optimizer,) = state.optimizers
        momentum = [optimizer.state[p]["momentum_buffer"] for p in state.model.parameters() if p in optimizer.state]
        seen.append(copy.deepcopy([list(state.model.parameters()), momentum]))

    callback = make_callback("none", callbacks=[at_events([Event.BATCH_END], look)])
    callback.state.algorithms.append(AtStep(2, lambda state: state.skip_step()))
    make_trainer([callback], max_epochs=1).fit(module, *make_loaders())

    def same(one, other):
        return all(torch.equal(a, b) for k in (0, 1) for a, b in zip(seen[one][k], seen[other][k], strict=True))

    assert same(1, 2) and not same(2, 3) and not same(0, 1)
    assert callback.state.timestamp.batch == 7


@pytest.mark.parametrize(
    ("event", "batches"),
    [("after_train_batch", 3), ("batch_end", 2), ("batch_checkpoint", 2), ("eval_end", 7), ("epoch_end", 7)],
)
@pytest.mark.parametrize("how", ["stop_training", "pause_training"])
def test_stop_training_ends_after_that_batch(event, batches, how):
    def stop(_, state):
        if state.timestamp.batch >= 2:
            getattr(state, how)()

    _, callback = fit(at=[Event(event)], does=stop)
    assert callback.state.timestamp.batch == batches


def test_a_stop_in_a_validation_in_mid_epoch_ends_after_it():
    _, callback = fit(at=[Event.EVAL_END], does=lambda _, state: state.stop_training(), val_check_interval=2)
    assert callback.state.timestamp.batch == 2


def test_lbfgs_gets_one_after_dataloader_a_batch():
    class Quasi(Digits):
        def configure_optimizers(self):
            return torch.optim.LBFGS(self.parameters(), lr=0.01, max_iter=3)

    heard = []
    events = [Event.AFTER_DATALOADER, Event.BATCH_START, Event.BEFORE_FORWARD, Event.AFTER_LOSS, Event.BATCH_END]
    _, callback = fit(module=Quasi(), at=events, does=lambda event, _: heard.append(event), limit_train_batches=2)
    counts = {str(event.value): heard.count(event) for event in events}

    assert counts.pop("before_forward") == counts.pop("after_loss") > 4 * 2
    assert counts == dict.fromkeys(["after_dataloader", "batch_start", "batch_end"], 4)
    assert callback.state.timestamp.batch == 4


def test_training_step_logs_its_first_pass_where_sam_makes_a_second():
    class Logging(Digits):
        def __init__(self):
            super().__init__()
            self.first, self.logged = [], []

        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.log("train_loss", loss)
            self.log_dict({"twice": 2 * loss})
            return {"loss": loss}

        def on_train_batch_end(self, outputs, batch, batch_idx):
            metrics = self.trainer.callback_metrics
            self.logged.append((metrics["train_loss"].item(), metrics["twice"].item() / 2))

    module, losses = Logging(), []
    left, _ = fit("sam", module=module, at=[Event.AFTER_LOSS], does=lambda _, state: losses.append(state.loss.item()))

    assert len(losses) == 2 * len(module.logged) == 28
    assert module.logged == [(loss, loss) for loss in losses[::2]]
    assert differences(left, train_ours("sam")) == []


@pytest.mark.parametrize("case", ["none", "together", "sam"])
def test_bf16_equals_ours_and_scores_in_the_runs_precision(case):
    left, callback = fit(case, precision="bf16-mixed")

    assert callback.state.precision == "amp_bf16"
    assert differences(left, train_ours(case, precision="amp_bf16")) == []


def test_autocast_is_off_until_the_step_begins():
    found = []
    events = [Event.AFTER_DATALOADER, Event.BEFORE_TRAIN_BATCH, Event.AFTER_FORWARD, Event.AFTER_TRAIN_BATCH]
    does = lambda event, _: found.append((event.value, torch.is_autocast_enabled("cpu")))  # noqa: E731
    fit(at=events, does=does, precision="bf16-mixed", max_steps=1)
    assert found == [(event.value, event is Event.AFTER_FORWARD) for event in events]


def test_a_scaled_loss_is_seen_as_it_was():
    def fp16():
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        return {"plugins": [MixedPrecision("16-mixed", "cpu", scaler)], "max_steps": 3}

    losses = []
    events = [Event.AFTER_LOSS, Event.BEFORE_BACKWARD, Event.AFTER_TRAIN_BATCH]
    _, callback = fit(at=events, does=lambda _, state: losses.append(state.loss.item()), **fp16())
    assert losses[::3] == losses[1::3] == losses[2::3] and callback.state.precision == "amp_fp16"

    with pytest.raises(UnsupportedError, match="no closure: its scaler unscales once a step; use precision='bf16-mi"):
        fit("sam", **fp16())


@pytest.mark.parametrize("rests", [False, True])
def test_schedulers_rest_while_an_algorithm_sets_the_learning_rates(rests):
    class Scheduled(Digits):
        def configure_optimizers(self):
            optimizer = super().configure_optimizers()
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    rates = []
    callback = make_callback("none", callbacks=[at_events([Event.BATCH_END], lambda _, s: rates.append(rate(s)))])
    rate = lambda state: state.optimizers[0].param_groups[0]["lr"] / LEARNING_RATE  # noqa: E731
    callback.state.algorithms.append(AtStep(1, lambda state: setattr(state.loop, "schedulers_paused", rests)))
    make_trainer([callback], max_steps=4).fit(Scheduled(), *make_loaders())

    assert rates == ([0.5] * 4 if rests else [0.5, 0.25, 0.125, 0.0625])
    assert len(callback.state.schedulers) == 1


def test_a_copy_of_the_module_in_mid_training_is_the_users_own():
    copies = []

    class Copying(pl.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            copies.append(copy.deepcopy(module))
            assert copies[-1].training_step(batch, 0).requires_grad

    callback, module = make_callback("together"), Digits()
    make_trainer([callback, Copying()], max_steps=2).fit(module, *make_loaders())
    assert type(vars(copies[0])["backward"]).__name__ == "method" and copies[0].backward.__self__ is copies[0]


# ---- bad use


class Twice(Digits):
    def training_step(self, batch, batch_idx):
        return self.criterion((self.net(batch[0]) + self.net(batch[0])) / 2, batch[1])


class OwnLoss(Digits):
    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self.net(batch[0]), batch[1])


class OtherTargets(Digits):
    def training_step(self, batch, batch_idx):
        return self.criterion(self.net(batch[0]), batch[1].clone())


class Manual(Digits):
    automatic_optimization = False


class FromTheLoader(Digits):
    def training_step(self, dataloader_iter):
        raise AssertionError


@pytest.mark.filterwarnings("ignore:You are using the `dataloader_iter` step flavor")
@pytest.mark.parametrize(
    ("module", "kind", "message"),
    [
        (
            Twice,
            EngineError,
            r"the training step called self.net\(...\) 2 times and self.criterion\(...\) 1 times",
        ),
        (
            OwnLoss,
            EngineError,
            r"self.net\(...\) 1 times and self.criterion\(...\) 0 times, .* black box: loss_fn=None",
        ),
        (
            OtherTargets,
            EngineError,
            "an algorithm replaced the targets, .* gives others to self.criterion: give it",
        ),
        (
            Manual,
            UnsupportedError,
            "can't work with manual optimization: let Lightning step",
        ),
        (
            FromTheLoader,
            UnsupportedError,
            "can't work with a step of dataloader_iter: let it take",
        ),
    ],
)
def test_a_step_that_cant_be_taken_apart_is_refused(module, kind, message):
    with pytest.raises(kind, match=message):
        fit("label_smoothing", module=module())


def test_other_targets_are_fine_where_no_algorithm_replaces_them():
    left, _ = fit("ema", module=OtherTargets())
    assert differences(left, train_ours("ema")) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "nett"}, r"^model='nett': Digits has no such model; did you mean 'net'\?"),
        (
            {"loss_fn": "criterium"},
            r"^loss_fn='criterium': Digits has no such loss_fn; did you mean",
        ),
        ({"model": "training_step"}, r"^model='training_step': Digits has no such model"),
    ],
)
def test_an_attribute_that_is_not_there_is_refused_with_the_nearest_name(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        make_trainer([make_callback("none", **arguments)]).fit(Digits(), *make_loaders())


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
def test_the_backward_builds_a_graph_for_who_asks_for_it():
    algorithm, module, callback = Differentiated(), Digits(), make_callback("none")
    callback.state.algorithms.append(algorithm)
    make_trainer([callback]).fit(module, *make_loaders())
    assert algorithm.found == [True] * 14
    assert differences(ended(module.net, callback.state, module.losses), train_ours("none")) == []


def test_a_stop_at_the_checkpoint_of_an_epoch_begins_no_other():
    _, callback = fit(at=[Event.EPOCH_CHECKPOINT], does=lambda _, state: state.stop_training())
    assert callback.state.timestamp[:2] == (1, 7)
