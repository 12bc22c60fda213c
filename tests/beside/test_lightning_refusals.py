"""What the adapter refuses before the model is changed, and what it says beforehand without Lightning."""

import lightning.pytorch as pl
import pytest
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.strategies import FSDPStrategy

from engine_core.errors import ArgumentError, UnsupportedError

from .cases import make_loaders
from .lightning_runs import ITS_WARNINGS, Digits, make_callback, make_trainer

pytestmark = ITS_WARNINGS


@pytest.mark.parametrize(
    ("case", "settings", "message"),
    [
        ("swa", {"max_epochs": -1}, "no duration: neither max_epochs nor max_steps is set; set one on the Trainer"),
        ("none", {"min_steps": 5}, "no stop: min_epochs or min_steps forbids it; leave that out"),
        ("sam", {"more": [GradientAccumulationScheduler({1: 2})]}, "no closure: accumulate_grad_batches makes a step"),
    ],
)
def test_what_a_run_lacks_is_refused_before_the_model_is_changed(case, settings, message):
    more, module = settings.pop("more", []), Digits()
    callback = make_callback(case, callbacks=["early_stopper"] if case == "none" else [])
    callback.state.algorithms.append(make_callback("squeeze_excite").state.algorithms[0])
    before = [*module.state_dict()]
    with pytest.raises(UnsupportedError, match=message):
        make_trainer([callback, *more], **settings).fit(module, *make_loaders())
    assert [*module.state_dict()] == before and "setup" not in vars(module)


def test_two_callbacks_in_one_trainer_are_refused():
    with pytest.raises(ArgumentError, match="can't work with two of it in a Trainer: give all algorithms to one"):
        make_trainer([make_callback("ema"), make_callback("cutout")]).fit(Digits(), *make_loaders())


def test_other_strategies_are_refused():
    trainer = make_trainer([callback := make_callback("none")])
    trainer._accelerator_connector.strategy = FSDPStrategy()
    with pytest.raises(UnsupportedError, match="for Digits, can't work with FSDPStrategy: use strategy='ddp'"):
        callback.setup(trainer, Digits(), "fit")


def test_a_name_that_lightning_no_longer_has_is_named(monkeypatch):
    monkeypatch.delattr(pl.Trainer, "is_last_batch")
    with pytest.raises(UnsupportedError) as caught:
        make_trainer([make_callback("none")]).fit(Digits(), *make_loaders())
    assert str(caught.value) == (
        f"engine-core-lightning can't work with lightning {pl.__version__}: it lacks Trainer.is_last_batch; install "
        "'lightning!=2.6.2,!=2.6.3,<2.7,>=2.5.2', or another version of engine-core-lightning"
    )
