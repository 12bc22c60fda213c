"""What ends a run on several ranks counts once all of them know of it; one rank that asks late ends nobody else's."""

import pytest
import torch
from torch import nn

from engine_core import Trainer
from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core_author import ThreadRanks

from .parts import at

DATA = [(torch.arange(8.0).reshape(4, 2), torch.ones(4, 1))] * 3


def trainer(model, ranks, *callbacks, max_duration="2ep"):
    return Trainer(
        model,
        DATA,
        max_duration=max_duration,
        loss_fn=nn.MSELoss(),
        optimizers=torch.optim.SGD(model.parameters(), lr=0.01),
        eval_dataloader=DATA,
        eval_interval="2ba",
        callbacks=callbacks,
        parallel=ranks,
        progress_bar=False,
    )


def paused(folder, place, end, rank=0, ranks=None):
    """Let one rank ask for a pause there, ahead of the saver; return if the run paused, and what it saved."""
    event, batch = place

    def pause(state):
        if state.timestamp.batch == batch and state.rank == rank:
            state.pause_training()

    with trainer(nn.Linear(2, 1), ranks, at(event, pause), CheckpointSaver(folder, "100ba"), max_duration=end) as made:
        made.fit()
    return made.state.loop.pause_requested, [path.name for path in folder.glob("ep*")]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("place", "saved"),
    [(("batch_checkpoint", 1), "ep0-ba2"), (("batch_checkpoint", 3), "ep1-ba3"), (("epoch_checkpoint", 3), "ep1-ba4")],
)
def test_a_pause_asked_for_as_checkpoints_are_saved_counts_from_the_next_agreement(place, saved, rank, tmp_path):
    assert ThreadRanks.run(lambda ranks: paused(tmp_path, place, "2ep", rank, ranks)) == [(True, [saved])] * 2


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("event", ["eval_end", "fit_end"])
def test_a_pause_that_one_rank_asks_for_at_the_end_pauses_all_as_on_one_process(event, rank, tmp_path):
    place = event, 3
    ended = ThreadRanks.run(lambda ranks: paused(tmp_path / "two", place, "3ba", rank, ranks))
    assert ended == [paused(tmp_path / "one", place, "3ba")] * 2
    assert ended == [(True, ["ep1-ba3"])] * 2


@pytest.mark.parametrize("event", ["batch_checkpoint", "epoch_checkpoint"])
def test_an_interrupted_run_leaves_the_mean_of_running_statistics_though_nothing_saves_it(event):
    def program(ranks):
        def interrupt(state):
            state.loop.interrupted_by = 15

        model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))
        with trainer(model, ranks, at(event, interrupt), max_duration="1ep") as made, pytest.raises(SystemExit):
            made.fit()
        return model[0].running_mean

    one, other = ThreadRanks.run(program)
    assert one.tolist() == other.tolist()
