"""Which modules `fit` puts into train mode, if the model comes in eval mode."""

import warnings

import pytest
import torch
from torch import nn

from engine_core.callbacks.checkpoint_saver import CheckpointSaver

from .parts import at, batches, net, trainer


def told(fit):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit()
    return [str(warning.message) for warning in caught if "train mode" in str(warning.message)]


def in_train_mode(model):
    return [name for name, module in model.named_modules() if module.training]


def test_a_model_in_eval_mode_is_put_into_train_mode_with_a_warning():
    model = net().eval()
    with trainer(batches(6, 6), model) as made:
        with pytest.raises(UserWarning, match="came in eval mode"):  # an error leaves the modes
            made.fit()
        assert in_train_mode(model) == []
        (message,) = told(made.fit)
    assert "fit() has put 6 modules of it into train mode" in message
    assert in_train_mode(model) == ["", "0", "1", "2", "3", "4"]


def test_what_is_frozen_stays_in_eval_mode_with_all_that_is_in_it():
    body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5)).requires_grad_(False)
    model = nn.Sequential(body, nn.Dropout(0.1), nn.Linear(6, 3)).eval()
    before = body[1].running_mean.clone()
    with trainer(batches(6, 6), model) as made:
        (message,) = told(made.fit)
    assert "put 3 modules of it into train mode" in message
    assert in_train_mode(model) == ["", "1", "2"]
    assert torch.equal(body[1].running_mean, before)


def test_each_fit_looks_again_and_a_model_in_train_mode_is_left_alone():
    model = net()
    model[1].eval()
    with trainer(batches(6, 6), model, max_duration="2ep") as made:
        assert told(lambda: made.fit("1ep")) == []
        assert not model[1].training
        model.eval()
        assert len(told(lambda: made.fit("1ep"))) == 1


def test_what_fit_end_does_to_the_model_says_nothing_about_the_next_fit(tmp_path):
    def made(length):
        infer = at("fit_end", lambda state: state.model.eval())
        note = at("batch_end", lambda state: modes.append(state.model.training))
        callbacks = [infer, note, CheckpointSaver(tmp_path, "1ep")]
        return trainer(batches(6, 6), net(), max_duration=length, callbacks=callbacks, autoresume=True)

    modes = []
    with made("2ep") as first:
        first.fit("1ep")
        with pytest.warns(UserWarning, match="came in eval mode"):
            first.fit()
    with made("3ep") as second, pytest.warns(UserWarning, match="came in eval mode"):
        second.fit()
    assert modes == [True] * 6


def test_that_batchnorm_sees_microbatches_is_told_once():
    made = trainer(batches(6, 6), nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), microbatch_size=3)
    with made, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made.fit()
    assert sum("statistics in training from each microbatch" in str(w.message) for w in caught) == 1
