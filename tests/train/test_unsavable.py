"""A state that can't be saved is refused when the fit starts; one that becomes so later costs its checkpoints."""

import pytest
import torch
from torch import nn

from engine_core import Algorithm, AlgorithmMetadata, Callback, Event, LoggerDestination
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.errors import CheckpointError, CheckpointWarning

from .parts import trainer


class Keeper:
    """Keeps an object from the start, or from a batch on."""

    def __init__(self, value, start=0):
        self.value, self.start, self.batch = value, start, 0

    def state_dict(self):
        return {"hook": self.value if self.batch >= self.start else None}

    def load_state_dict(self, state):
        """Take nothing."""


class KeepingCallback(Keeper, Callback):
    def batch_end(self, state, logger):
        self.batch = state.timestamp.batch


class KeepingDestination(Keeper, LoggerDestination):
    pass


class KeepingAlgorithm(Keeper, Algorithm):
    metadata = AlgorithmMetadata(events=(Event.FIT_START,))

    def match(self, event, state):
        return True

    def apply(self, event, state, logger):
        self.value = object()


class KeepingModel(nn.Linear):
    def get_extra_state(self):
        return object()

    def set_extra_state(self, state):
        """Take nothing."""


class KeepingLoss(nn.CrossEntropyLoss):
    get_extra_state, set_extra_state = KeepingModel.get_extra_state, KeepingModel.set_extra_state


def scheduler_of(optimizer):
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 9)
    scheduler.note = object()
    return scheduler


def optimizer_of(parameters):
    return torch.optim.SGD([{"params": list(parameters), "note": object()}], lr=0.1)


OWNERS = {
    "KeepingAlgorithm.state_dict()['hook']": {"algorithms": KeepingAlgorithm(None)},
    "KeepingCallback-2.state_dict()['hook']": {"callbacks": [KeepingCallback(None), KeepingCallback(object())]},
    "KeepingDestination.state_dict()['hook']": {"loggers": KeepingDestination(object())},
    "StepLR.state_dict()['note']": {"schedulers": scheduler_of},
    "SGD.state_dict()['param_groups'].0.note": {"optimizers": optimizer_of},
    "model.state_dict()['_extra_state']": {"model": KeepingModel(4, 3)},
    "loss_fn.state_dict()['_extra_state']": {"loss_fn": KeepingLoss()},
}


@pytest.mark.parametrize("path", OWNERS)
@pytest.mark.parametrize("on_error", ["warn", "stop"])
def test_what_cannot_be_saved_is_refused_when_the_fit_starts_with_its_path(path, on_error, tmp_path):
    settings = dict(OWNERS[path])
    given = settings.pop("callbacks", [])
    made = trainer(callbacks=[CheckpointSaver(tmp_path / "saved", on_error=on_error), *given], **settings)
    with made, pytest.raises(CheckpointError) as refused:
        made.fit()
    assert str(refused.value).startswith(f'"{path}" is a builtins.object, and a checkpoint holds None, booleans')
    assert made.state.timestamp.batch == 0
    assert not (tmp_path / "saved").exists()


def test_what_becomes_unsavable_later_ends_the_run_if_on_error_is_stop_and_is_a_warning_else(tmp_path):
    keeper = KeepingCallback(object(), start=1)
    made = trainer(callbacks=[keeper, CheckpointSaver(tmp_path / "stops", "1ba", on_error="stop")])
    with made, pytest.raises(CheckpointError, match=r"no checkpoint .*'listeners\.KeepingCallback\.hook' is a"):
        made.fit()
    assert made.state.timestamp.batch == 1
    saver = CheckpointSaver(tmp_path, "1ba")
    made = trainer(callbacks=[KeepingCallback(object(), start=2), saver])
    with pytest.warns(CheckpointWarning, match=r"hook' is a builtins\.object|2 checkpoints could not"), made:
        made.fit()
    assert [path.name for path in saver.written()] == ["ep0-ba1"]


def test_without_a_saver_nothing_is_refused():
    with trainer(callbacks=KeepingCallback(object())) as made:
        made.fit()
    assert made.state.timestamp.batch == 2


def test_lazy_parameters_are_saved_once_the_first_batch_has_made_them(tmp_path):
    model = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 3))
    with trainer(model=model, callbacks=CheckpointSaver(tmp_path, "1ba", on_error="stop")) as made:
        made.fit()
    assert sorted(path.name for path in tmp_path.glob("ep*")) == ["ep0-ba1", "ep0-ba2", "ep1-ba2"]


@pytest.mark.parametrize("state", [[object()], {3: object()}, {object(): 3}, {"a": {"b": [1, object()]}}])
def test_an_object_is_found_anywhere_in_a_state(state, tmp_path):
    keeper = KeepingCallback(None)
    keeper.state_dict = lambda: state
    made = trainer(callbacks=[keeper, CheckpointSaver(tmp_path)])
    with made, pytest.raises(CheckpointError, match=r"KeepingCallback\.state_dict\(\)"):
        made.fit()
