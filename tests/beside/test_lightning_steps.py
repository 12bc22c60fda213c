"""What Lightning does around a step is kept, and a step that can't be taken apart is refused by name."""

import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch.nn import functional as F

from engine_core import Algorithm, AlgorithmMetadata, Event
from engine_core.errors import EngineError, UnsupportedError
from engine_core_author.probes import at_events

from .cases import LEARNING_RATE, differences, ended, make_loaders, train_ours
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


@pytest.mark.parametrize(
    ("event", "batches", "how"),
    [
        ("after_train_batch", 3, "stop_training"),
        ("batch_checkpoint", 2, "pause_training"),
        ("eval_end", 7, "stop_training"),
        ("epoch_end", 7, "pause_training"),
    ],
)
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


# ---- bad use


class OwnLoss(Digits):
    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self.net(batch[0]), batch[1])


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
            OwnLoss,
            EngineError,
            r"self.net\(...\) 1 times and self.criterion\(...\) 0 times, .* black box: loss_fn=None",
        ),
        (Manual, UnsupportedError, "can't work with manual optimization: let Lightning step"),
        (FromTheLoader, UnsupportedError, "can't work with a step of dataloader_iter: let it take"),
    ],
)
def test_a_step_that_cant_be_taken_apart_is_refused(module, kind, message):
    with pytest.raises(kind, match=message):
        fit("label_smoothing", module=module())


def test_a_stop_at_the_checkpoint_of_an_epoch_begins_no_other():
    _, callback = fit(at=[Event.EPOCH_CHECKPOINT], does=lambda _, state: state.stop_training())
    assert callback.state.timestamp[:2] == (1, 7)
