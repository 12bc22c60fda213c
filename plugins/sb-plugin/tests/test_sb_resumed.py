"""Runs resumed from a checkpoint pick the rows that the uninterrupted run picks, in every mode."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from engine_core import Callback, State, Trainer
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core_author import RecordingDestination
from sb_plugin import SelectiveBackprop, WithIndex

MODES: dict[str, dict[str, Any]] = {
    "forward": {},
    "cdf": {"selector": "cdf", "floor": 0.2},
    "topk": {"selector": "topk", "floor": 0.3},
    "uniform": {"selector": "uniform", "multiple_of": 3},
    "carried": {"scorer": "carried", "index_key": 2},
    "stale": {"scorer": "stale", "index_key": 2, "refresh": 2},
    "function": {"scorer": lambda batch, state: F.cross_entropy(state.model(batch[0]), batch[1], reduction="none")},
    "eval, bf16": {"bn": "eval", "precision": "bf16"},
    "seeded": {"generator_seed": 3},
}


class Picks(Callback):
    def __init__(self) -> None:
        self.rows: dict[int, list[int]] = {}

    def before_forward(self, state: State, logger: Any) -> None:
        self.rows.setdefault(state.timestamp.batch, []).extend(state.batch[2].tolist())


def run(mode: dict[str, Any], folder: Path, **begin: Any) -> tuple[dict[int, list[int]], dict[str, Any], nn.Module]:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 2))
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    data = WithIndex(TensorDataset(x, (x.sum(1) > 0).long()))
    picks, algorithm = Picks(), SelectiveBackprop(0.1, 1, scale_factor=1, interrupt=4, **mode)
    with Trainer(
        model,
        DataLoader(data, 12, shuffle=True, drop_last=True),
        max_duration="5ep",
        loss_fn=F.cross_entropy,
        optimizers=torch.optim.SGD(model.parameters(), lr=0.3),
        algorithms=[algorithm],
        callbacks=[picks, CheckpointSaver(folder, "1ba", keep_last=None)],
        device="cpu",
        seed=1,
        **begin,
    ) as trainer:
        trainer.fit()
    return picks.rows, algorithm.state_dict(), model


@pytest.mark.parametrize("at", ["ep1-ba4", "ep2-ba9"])
@pytest.mark.parametrize("mode", MODES)
def test_the_rest_of_a_run_picks_the_same_rows(mode: str, at: str, tmp_path: Path) -> None:
    """From the middle of an epoch and from between two."""
    rows, state, model = run(MODES[mode], tmp_path / "whole")
    begin = int(at.rpartition("ba")[2])
    path = tmp_path / "whole" / at
    rest, state_again, model_again = run(MODES[mode], tmp_path / "again", load_path=path)
    assert rest == {batch: picked for batch, picked in rows.items() if batch >= begin}
    assert list(state) == list(state_again)
    same = [name for name in state if name != "scoring_s"]
    assert all(torch.equal(torch.as_tensor(state[name]), torch.as_tensor(state_again[name])) for name in same)
    assert all(map(torch.equal, model.state_dict().values(), model_again.state_dict().values()))


class PauseAfter(Callback):
    def __init__(self, batches: int) -> None:
        self.batches = batches

    def batch_end(self, state: State, logger: Any) -> None:
        if state.timestamp.batch == self.batches:
            state.pause_training()


def test_the_summary_of_a_run_that_pauses_is_logged_once_and_covers_all_of_it(tmp_path: Path) -> None:
    def slow(batch: Any, state: State) -> torch.Tensor:
        if state.timestamp.batch < 3:  # before the pause only
            time.sleep(0.2)
        return batch[0].sum(1)

    destination = RecordingDestination()
    data = [(torch.randn(8, 6), torch.randint(2, (8,))) for _ in range(6)]
    for pause_at in (3, 0):
        model = nn.Linear(6, 2)
        with Trainer(
            model,
            data,
            max_duration="1ep",
            loss_fn=F.cross_entropy,
            optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
            algorithms=SelectiveBackprop(0, 1, keep=0.25, scale_factor=1, interrupt=0, scorer=slow),
            callbacks=[PauseAfter(pause_at), CheckpointSaver(tmp_path)],
            loggers=destination,
            device="cpu",
            autoresume=True,
        ) as trainer:
            trainer.fit()
    (summary,) = [logged for _, logged in destination.metrics if "selective_backprop/kept_fraction" in logged]
    assert summary["selective_backprop/kept_fraction"] == 0.25
    assert summary["time/selective_backprop/scoring_fraction"] > 0.5
