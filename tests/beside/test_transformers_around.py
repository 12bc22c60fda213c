"""What a user does beside the engine stands: callbacks that evaluate or end an epoch, patches, a trainer let go."""

import gc
import weakref

import pytest
import torch
import transformers
from torch import nn

from engine_core import Event
from engine_core.errors import UnsupportedError
from engine_core_author.probes import at_events
from engine_core_transformers import EngineTrainer, EngineTrainerMixin

from .cases import make_algorithms
from .transformers_runs import Digits, Net, arguments, make_trainer

QUIET = {"eval_strategy": "no"}
LOSS = nn.CrossEntropyLoss()


class AtStep(transformers.TrainerCallback):
    """Does something after one step."""

    def __init__(self, step, do):
        self.step, self.do = step, do

    def on_step_end(self, args, state, control, **_):
        if state.global_step == self.step:
            self.do(control)


def test_an_evaluation_whose_exception_a_callback_catches_does_not_end_the_fit(tmp_path):
    caught, fired = [], []

    def fail(_):
        raise KeyError("metrics")

    def evaluate(_):
        trainer.compute_metrics = fail
        try:
            trainer.evaluate()
        except KeyError as error:
            caught.append(error)
        trainer.compute_metrics = None

    watch = at_events([Event.FIT_END], lambda event, state: fired.append((event.value, state.timestamp.batch)))
    trainer = make_trainer(
        *(tmp_path, make_algorithms("ema")), callbacks=[AtStep(3, evaluate)], engine_callbacks=[watch], args=QUIET
    )
    plain = make_trainer(tmp_path, make_algorithms("ema"), args=QUIET)
    for each in (trainer, plain):
        each.train()

    assert len(caught) == 1 and fired == [("fit_end", 14)]
    assert all(map(torch.equal, trainer.model.state_dict().values(), plain.model.state_dict().values()))


def test_an_epoch_that_a_callback_ends_is_over(tmp_path):
    epochs = []
    watched = [Event.EPOCH_START, Event.EPOCH_END, Event.EPOCH_CHECKPOINT]
    watch = at_events(watched, lambda event, state: epochs.append((event.value, *state.timestamp[:2])))
    trainer = make_trainer(
        tmp_path,
        callbacks=[AtStep(3, lambda control: setattr(control, "should_epoch_stop", True))],
        engine_callbacks=[watch],
    )
    trainer.train()

    assert epochs == [
        *(("epoch_start", 0, 0), ("epoch_end", 1, 3), ("epoch_checkpoint", 1, 3)),
        *(("epoch_start", 1, 3), ("epoch_end", 2, 10), ("epoch_checkpoint", 2, 10)),
    ]
    assert trainer.state.epoch == trainer.engine_state.timestamp.epoch == 2


def test_what_a_user_put_into_the_accelerator_is_called_and_stays(tmp_path):
    trainer, calls = make_trainer(tmp_path, args={"max_steps": 2, "max_grad_norm": 0.5, **QUIET}), []

    def counted(name, call):
        return lambda *args, **kwargs: calls.append(name) or call(*args, **kwargs)

    names = ("backward", "clip_grad_norm_")
    put = {name: counted(name, getattr(trainer.accelerator, name)) for name in names}
    vars(trainer.accelerator).update(put)
    trainer.train()

    assert calls.count("backward") == 2 and calls.count("clip_grad_norm_") >= 2
    assert all(getattr(trainer.accelerator, name) is put[name] for name in names)


@pytest.mark.parametrize("loss_fn", [None, LOSS])
def test_a_trainer_that_is_let_go_frees_the_model_at_once_and_is_none_of_its_callbacks(loss_fn, tmp_path):
    def freed(kind, **given):
        trainer = kind(Net(), arguments(tmp_path, **QUIET, max_steps=2), train_dataset=Digits(), **given)
        trainer.train()
        held = weakref.ref(trainer.model), weakref.ref(trainer.model.net[0].weight)
        listed = trainer.callback_handler.callback_list
        del trainer
        return [each() is None for each in held], listed

    gc.collect()
    gc.disable()
    try:
        plain = freed(transformers.Trainer)
        engined = freed(EngineTrainer, loss_fn=loss_fn)
    finally:
        gc.enable()
    assert plain[0] == [True, True]
    assert engined == plain
    assert not issubclass(EngineTrainerMixin, transformers.TrainerCallback)


class Lacks(transformers.Trainer):
    """One of a later version, say."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        del self.model_accepts_loss_kwargs


class BeforeLacks(EngineTrainerMixin, Lacks):
    pass


class BeforeTraining(Net):
    """Does something when all is prepared: the Trainer resets gradients then."""

    def zero_grad(self, *_):
        self.do()


def test_attributes_that_are_gone_are_told_with_version_and_range(tmp_path):
    says = r"can't work with {} \d\..*: it lacks {}; install '{}"
    name = r"\w+\.model_accepts_loss_kwargs"
    with pytest.raises(UnsupportedError, match=says.format("transformers", name, "transformers")):
        make_trainer(tmp_path, kind=BeforeLacks)
    trainer = make_trainer(tmp_path, model=BeforeTraining())
    trainer.model.do = lambda: vars(trainer.optimizer).pop("optimizer")
    with pytest.raises(
        UnsupportedError, match=says.format("accelerate", "AcceleratedOptimizer.optimizer", "accelerate")
    ):
        trainer.train()
