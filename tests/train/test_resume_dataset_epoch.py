"""A dataset that gets the epoch from a callback, as docs/howto/resume.md says: at its start, and after a load."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from engine_core import Callback, Logger, State
from engine_core.callbacks.checkpoint_saver import CheckpointSaver

from .parts import linear, rows, same, trainer


class Growing(Dataset[Any]):
    epoch = 0

    def __len__(self) -> int:
        return 20

    def __getitem__(self, place: int) -> Any:
        inputs, targets = rows(20)
        return inputs[place] * (1 + self.epoch), targets[place]


class TellEpoch(Callback):
    def __init__(self, dataset: Growing) -> None:
        self.dataset = dataset

    def epoch_start(self, state: State, logger: Logger) -> None:
        self.dataset.epoch = state.timestamp.epoch

    def after_load(self, state: State, logger: Logger) -> None:
        self.dataset.epoch = state.timestamp.epoch


def weights(folder: Path, *parts: str | None) -> dict[str, torch.Tensor]:
    for part in parts:
        dataset = Growing()
        data = DataLoader(dataset, batch_size=4, shuffle=True)
        callbacks = [TellEpoch(dataset), CheckpointSaver(folder, "1ba")]
        made = trainer(data, linear(), max_duration="3ep", callbacks=callbacks, autoresume=True, seed=4)
        with made:
            made.fit(part)
    return dict(made.state.model.state_dict())


@pytest.mark.parametrize("batches", ["5ba", "7ba", "9ba"])
def test_a_dataset_is_in_its_epoch_in_a_resumed_run_too(batches: str, tmp_path: Path) -> None:
    assert same(weights(tmp_path / "parts", batches, None), weights(tmp_path / "whole", None))
