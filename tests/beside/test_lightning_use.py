"""The callback in use: the module as it was found, runs in a row, other loaders and modules, the other import name."""

import lightning.pytorch as pl
import pytest
import pytorch_lightning
import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.loggers.logger import DummyLogger
from torch.utils.data import DataLoader, IterableDataset

from engine_core import Event
from engine_core.errors import ArgumentError, UnsupportedError
from engine_core_author.probes import Injected, at_events, raise_at
from engine_core_lightning import EngineCallback

from .cases import BATCH, differences, ended, make_data, make_loaders, make_net, train_ours
from .lightning_runs import ITS_WARNINGS, Digits, Whole, make_callback, make_trainer

pytestmark = ITS_WARNINGS


def fit(callback, module=None, loaders=None, **settings):
    """Train a module, and return it."""
    module = Digits() if module is None else module
    make_trainer([callback], **settings).fit(module, *(loaders or make_loaders()))
    return module


def left_over(module):
    """Return the names of a module's attributes, but for those of the tests, and the number of hooks in it."""
    hooks = [len(getattr(part, name)) for part in module.modules() for name in vars(part) if name.endswith("_hooks")]
    return {*vars(module)} - {"losses", "total", "rows"}, sum(hooks)


def test_the_module_is_left_as_lightning_leaves_it():
    assert left_over(fit(make_callback("together"))) == left_over(fit(pl.Callback()))


@pytest.mark.parametrize("event", ["init", "after_forward", "eval_after_forward"])
def test_the_module_is_left_so_after_an_exception_too(event):
    names, weights, module = {*vars(fit(pl.Callback()))}, [], Digits()
    keep = at_events([Event.BATCH_END], lambda _, state: weights.append(state.model[0].weight.clone()))
    with pytest.raises(Injected):
        fit(make_callback("ema", callbacks=[raise_at(Event(event), 1), keep]), module)

    assert left_over(module)[0] <= names and left_over(module)[1] == 0
    if event.startswith("eval"):  # EMA's weights are out again
        assert torch.equal(module.net[0].weight, weights[-1])


def test_two_runs_in_a_row_with_one_module_and_two_callbacks():
    module = fit(make_callback("ema"))
    module.losses.clear()
    callback = make_callback("ema")
    fit(callback, module)
    assert callback.state.timestamp.batch == 14 and len(module.losses) == 2


def test_two_fits_with_one_callback_have_one_init():
    heard = []
    watch = at_events([Event.INIT, Event.FIT_START, Event.FIT_END], lambda event, _: heard.append(event.value))
    callback = make_callback("squeeze_excite", callbacks=[watch])
    module = fit(callback)
    parts = len([*module.net.modules()])
    fit(callback, module)

    assert heard == ["init", "fit_start", "fit_end", "fit_start", "fit_end"]
    assert len([*module.net.modules()]) == parts and callback.state.timestamp.batch == 28
    with pytest.raises(ArgumentError, match="can't work with another LightningModule: make one for each"):
        fit(callback)


@pytest.mark.parametrize("hook", ["configure_model", "setup"])
def test_layers_that_come_late_get_their_surgery(hook):
    class Late(Digits):
        def __init__(self):
            super().__init__()
            del self.net

    def make(self, stage=None):
        if not hasattr(self, "net"):
            self.net = make_net()

    setattr(Late, hook, make)
    callback = make_callback("squeeze_excite")
    module = fit(callback, Late())
    assert differences(ended(module.net, callback.state, module.losses), train_ours("squeeze_excite")) == []


def test_the_module_itself_is_the_model_by_default():
    callback = make_callback("together", model=None)
    module = fit(callback, Whole())
    left = ended(module, callback.state, module.losses, prefix="net.")
    assert callback.state.model is module and differences(left, train_ours("together")) == []


@pytest.mark.parametrize("what", ["validate", "test", "predict"])
def test_without_a_fit_nothing_happens(what):
    class Full(Digits):
        def test_step(self, batch, batch_idx):
            self.log("test_loss", self.criterion(self.net(batch[0]), batch[1]))

        def predict_step(self, batch, batch_idx):
            return self.net(batch[0])

    heard = []
    callback = make_callback("squeeze_excite", callbacks=[at_events(Event, lambda event, _: heard.append(event))])
    module = Full()
    before = [*module.net.state_dict()]
    quiet = {} if what == "predict" else {"verbose": False}
    getattr(make_trainer([callback]), what)(module, make_loaders()[1], **quiet)
    assert heard == [] and [*module.net.state_dict()] == before


def test_by_lightnings_other_name():
    class Same(pytorch_lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.criterion = make_net(), torch.nn.CrossEntropyLoss()

        training_step = Digits.training_step
        configure_optimizers = Digits.configure_optimizers

    callback, module = make_callback("together"), Same()
    make_trainer([callback], library=pytorch_lightning).fit(module, make_loaders()[0])

    ours = train_ours("together")._replace(losses=[])
    assert differences(ended(module.net, callback.state, []), ours) == []
    assert isinstance(callback, EngineCallback) and isinstance(callback, pl.Callback)
    with pytest.raises(UnsupportedError, match=r"can't work in pytorch_lightning 2\."):
        make_trainer([make_callback("mixup", loss_fn=None)], library=pytorch_lightning).fit(Same(), make_loaders()[0])


def test_a_loader_without_length():
    data = make_data()
    stream = type("Stream", (IterableDataset,), {"__iter__": lambda self: iter([data[n] for n in range(len(data))])})()
    heard = []
    watch = at_events([Event.EPOCH_START, Event.EPOCH_END], lambda event, _: heard.append(event.value))
    callback = make_callback("ema", callbacks=[watch])
    module = fit(callback, loaders=(DataLoader(stream, batch_size=BATCH), make_loaders()[1]))

    assert callback.state.dataloader_len is None and heard == ["epoch_start", "epoch_end"] * 2
    assert differences(ended(module.net, callback.state, module.losses), train_ours("ema")) == []


def test_what_algorithms_log_reaches_the_trainers_loggers():
    class Keep(DummyLogger):
        logged = []  # noqa: RUF012

        def log_metrics(self, metrics, step=None):
            self.logged.append((metrics, step))

    def log(_, state):
        callback.engine.logger.log_metrics({"mine": state.timestamp.batch * 10})

    callback = make_callback("none", callbacks=[at_events([Event.BATCH_END], log)])
    fit(callback, max_steps=2, logger=Keep())
    assert [entry for entry in Keep.logged if "mine" in entry[0]] == [({"mine": 10}, 1), ({"mine": 20}, 2)]


def test_results_have_lightnings_names():
    found = []
    watch = at_events([Event.EVAL_END], lambda _, state: found.append((state.dataloader_label, dict(state.metrics))))
    module = fit(make_callback("none", callbacks=[watch]))
    assert found == [("val", {"val_loss": pytest.approx(loss)}) for loss in module.losses]


@pytest.mark.parametrize(
    ("settings", "horizon"),
    [
        ({"max_epochs": 2, "max_steps": 14}, "14ba"),
        ({"max_epochs": 2, "max_steps": 3}, "3ba"),
        ({"max_epochs": -1, "max_steps": 3}, "3ba"),
        ({"max_epochs": 2, "max_steps": 9, "accumulate_grad_batches": 2}, "2ep"),
    ],
)
def test_the_horizon_is_the_end_that_comes_first(settings, horizon):
    callback = make_callback("none")
    fit(callback, limit_val_batches=0, **settings)
    assert str(callback.state.max_duration) == horizon


@pytest.mark.parametrize("before", [True, False])
def test_a_scheduler_of_accumulation_sets_the_length_of_each_epoch(before):
    found = []

    def look(event, state):
        found.append((event.value, state.dataloader_len, str(state.max_duration), state.get_elapsed_duration().value))

    callback = make_callback("none", callbacks=[at_events([Event.FIT_START, Event.EPOCH_START, Event.FIT_END], look)])
    both = [callback, GradientAccumulationScheduler({0: 4, 1: 2})]
    trainer = make_trainer(both if before else both[::-1], max_epochs=2, max_steps=7)
    trainer.fit(Digits(), *make_loaders())  # 7 batches: steps of 4 and 3, then of 2, 2, 2 and 1

    assert found == [
        *(("fit_start", 2, "2ep", 0), ("epoch_start", 2, "2ep", 0)),
        *(("epoch_start", 4, "2ep", 0.5), ("fit_end", 4, "2ep", 1)),
    ]
    assert trainer.global_step == 6


def test_what_stood_in_the_module_stands_there_again():
    class Plain(Digits):
        def __init__(self):
            super().__init__()
            del self.criterion
            self.criterion = torch.nn.functional.cross_entropy

    module = fit(callback := make_callback("label_smoothing"), Plain())
    assert module.criterion is torch.nn.functional.cross_entropy
    ours = train_ours("label_smoothing")
    assert differences(ended(module.net, callback.state, module.losses), ours) == []
