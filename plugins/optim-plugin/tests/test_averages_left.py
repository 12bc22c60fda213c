"""A run resumed leniently, with other weights than the averaged ones: the average is dropped, and starts again."""

import pytest
import torch
from torch import nn

from engine_core import Trainer
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core.errors import CheckpointWarning
from optim_plugin import EMA


def make(folder, outputs, **settings):
    model = nn.Linear(4, outputs)
    return Trainer(
        model,
        [(torch.randn(8, 4), torch.randint(2, (8,)))],
        max_duration="4ep",
        loss_fn=nn.CrossEntropyLoss(),
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        algorithms=EMA(),
        callbacks=CheckpointSaver(folder),
        progress_bar=False,
        seed=1,
        **settings,
    )


def test_an_average_of_other_weights_is_left_out_and_named(tmp_path):
    with make(tmp_path, 2) as trainer:
        trainer.fit("2ep")
    with pytest.warns(CheckpointWarning, match="the states of optimizers, schedulers, EMA were not loaded either"):
        trainer = make(tmp_path, 3, autoresume=True, load_strict=False)
    with trainer:
        trainer.fit()
    assert trainer.state.algorithms[0].averaged_state_dict()["weight"].shape == (3, 4)
