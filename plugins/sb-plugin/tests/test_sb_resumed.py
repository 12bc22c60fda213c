"""Runs resumed from a checkpoint pick the rows that the uninterrupted run picks, in every mode."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from parts import at, same, trainer
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from engine_core import State
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


def run(mode: dict[str, Any], folder: Path, **begin: Any) -> tuple[dict[int, list[int]], dict[str, Any], Any]:
    """Return the rows that each batch trained on, and the states of algorithm and model at the end."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 2))
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    data = DataLoader(WithIndex(TensorDataset(x, (x.sum(1) > 0).long())), 12, shuffle=True, drop_last=True)
    rows: dict[int, list[int]] = {}
    picks = at("before_forward", lambda state: rows.update({state.timestamp.batch: state.batch[2].tolist()}))
    algorithm = SelectiveBackprop(0.1, 1, scale_factor=1, interrupt=4, **mode)
    given = {"algorithms": algorithm, "callbacks": [picks, CheckpointSaver(folder, "1ba", keep_last=None)], **begin}
    with trainer(data, model, max_duration="4ep", seed=1, **given) as made:
        made.fit()
    state = {name: value for name, value in algorithm.state_dict().items() if name != "scoring_s"}
    return rows, state, model.state_dict()


@pytest.mark.parametrize("mode", MODES)
def test_the_rest_of_a_run_picks_the_same_rows(mode: str, tmp_path: Path) -> None:
    """From the middle of an epoch and from between two."""
    rows, *states = run(MODES[mode], tmp_path / "whole")
    for at_batch, name in ((4, "ep1-ba4"), (9, "ep2-ba9")):
        rest, *again = run(MODES[mode], tmp_path / name, load_path=tmp_path / "whole" / name)
        assert rest == {batch: picked for batch, picked in rows.items() if batch >= at_batch}
        assert same(states, again)


def test_the_summary_of_a_run_that_pauses_is_logged_once_and_covers_all_of_it(tmp_path: Path) -> None:
    def slow(batch: Any, state: State) -> torch.Tensor:
        if state.timestamp.batch < 3:  # before the pause only
            time.sleep(0.1)
        return batch[0].sum(1)

    destination = RecordingDestination()
    data = [(torch.randn(8, 6), torch.randint(2, (8,))) for _ in range(6)]
    for pause_at in (3, 0):
        pause = at("batch_end", lambda state, at=pause_at: state.timestamp.batch == at and state.pause_training())
        algorithm = SelectiveBackprop(0, 1, keep=0.25, scale_factor=1, interrupt=0, scorer=slow)
        given = {"algorithms": algorithm, "callbacks": [pause, CheckpointSaver(tmp_path)], "loggers": destination}
        with trainer(data, nn.Linear(6, 2), autoresume=True, **given) as made:
            made.fit()
    (summary,) = [logged for _, logged in destination.metrics if "selective_backprop/kept_fraction" in logged]
    assert summary["selective_backprop/kept_fraction"] == 0.25
    assert summary["time/selective_backprop/scoring_fraction"] > 0.5
