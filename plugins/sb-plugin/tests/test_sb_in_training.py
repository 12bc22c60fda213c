"""SelectiveBackprop in whole trainings, by the Trainer and by name, also resumed from a checkpoint in every mode."""

import math
import time

import pytest
import torch
from parts import at, same, trainer
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core_author import RecordingDestination
from sb_plugin import SelectiveBackprop, WithIndex

FULL = ("selective_backprop", {"start": 0.5, "end": 1, "scale_factor": 1, "interrupt": 0})


def data():
    x = torch.randn(32, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    return list(zip(x.split(8), (x.mean((1, 2, 3)) > 0).long().split(8), strict=True))


def train(algorithms, batches=None, **settings):
    """Return the batches that were trained on, and the weights after each step."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Dropout(0.2), nn.Linear(16, 2))
    seen = []
    weights = []
    watch = [
        at("before_forward", lambda state: seen.append(state.batch)),
        at("batch_end", lambda state: weights.append([each.clone() for each in state.model.state_dict().values()])),
    ]
    given = {"max_duration": "2ep", "algorithms": algorithms, "callbacks": watch, "seed": 1, **settings}
    with trainer(batches or data(), model, **given) as made:
        made.fit()
    return seen, weights


def sizes(batches):
    return [len(batch[0]) for batch in batches]


def test_runs_with_and_without_it_are_bit_identical_up_to_start_and_only_selected_steps_are_logged():
    destination = RecordingDestination()
    _, plain = train([])
    _, pruned = train([FULL], loggers=destination)
    assert [same(a, b) for a, b in zip(plain, pruned, strict=True)] == [True] * 4 + [False] * 4
    logged = {step: metrics for step, metrics in destination.metrics if "selective_backprop/kept" in metrics}
    assert [(step, metrics["selective_backprop/kept"]) for step, metrics in logged.items()] == [
        (step, 4) for step in (4, 5, 6, 7)
    ]
    assert all(math.isfinite(value) for metrics in logged.values() for value in metrics.values())


def test_a_selected_step_is_a_plain_step_on_the_rows_it_kept():
    """The oracle is a training on those rows, made of what the pruned run trained on."""
    kept, pruned = train([SelectiveBackprop(0, 1, 0.25, 1, 0)], max_duration="4ba")
    assert sizes(kept) == [2, 2, 2, 2]
    assert same(pruned, train([], kept, max_duration="4ba")[1])


@pytest.mark.filterwarnings("ignore:BatchNorm")
def test_with_microbatches_a_pruned_batch_is_split_without_a_warning():
    """Other warnings are errors here: the reference warned that it can't split the tensor."""
    seen, _ = train([FULL], microbatch_size=3)
    assert sizes(seen) == [3, 3, 2] * 4 + [2, 2] * 4


MODES = {
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


def run(mode, folder, **begin):
    """Return the rows that each batch trained on, and the states of algorithm and model at the end."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 2))
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    data = DataLoader(WithIndex(TensorDataset(x, (x.sum(1) > 0).long())), 12, shuffle=True, drop_last=True)
    rows = {}
    picks = at("before_forward", lambda state: rows.update({state.timestamp.batch: state.batch[2].tolist()}))
    algorithm = SelectiveBackprop(0.1, 1, scale_factor=1, interrupt=4, **mode)
    given = {"algorithms": algorithm, "callbacks": [picks, CheckpointSaver(folder, "1ba", keep_last=None)], **begin}
    with trainer(data, model, max_duration="4ep", seed=1, **given) as made:
        made.fit()
    state = {name: value for name, value in algorithm.state_dict().items() if name != "scoring_s"}
    return rows, state, model.state_dict()


@pytest.mark.parametrize("mode", MODES)
def test_the_rest_of_a_run_picks_the_same_rows(mode, tmp_path):
    """From the middle of an epoch and from between two."""
    rows, *states = run(MODES[mode], tmp_path / "whole")
    for at_batch, name in ((4, "ep1-ba4"), (9, "ep2-ba9")):
        rest, *again = run(MODES[mode], tmp_path / name, load_path=tmp_path / "whole" / name)
        assert rest == {batch: picked for batch, picked in rows.items() if batch >= at_batch}
        assert same(states, again)


def test_the_summary_of_a_run_that_pauses_is_logged_once_and_covers_all_of_it(tmp_path):
    def slow(batch, state):
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
