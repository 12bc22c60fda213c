"""What ends a run on several ranks counts once all of them know of it; one rank that asks late ends nobody else's."""

import pytest
import torch
from torch import nn

from engine_core.callbacks.checkpoint_saver import CheckpointSaver
from engine_core_author import ThreadRanks

from .parts import at, trainer

DATA = [(torch.arange(8.0).reshape(4, 2), torch.ones(4, 1))] * 3


def trained(ranks, *callbacks, model=None, max_duration="2ep"):
    evaluating = {"eval_dataloader": DATA, "eval_interval": "2ba"}
    model = nn.Linear(2, 1) if model is None else model
    given = {"loss_fn": nn.MSELoss(), "callbacks": callbacks, "parallel": ranks, **evaluating}
    with trainer(DATA, model, max_duration=max_duration, **given) as made:
        made.fit()
    return made


def paused(folder, place, end, rank=0, ranks=None):
    """Let one rank ask for a pause there, ahead of the saver; return if the run paused, and what it saved."""
    event, batch = place
    asks = lambda state: (state.timestamp.batch, state.rank) == (batch, rank) and state.pause_training()  # noqa: E731
    made = trained(ranks, at(event, asks), CheckpointSaver(folder, "100ba"), max_duration=end)
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
        model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))
        interrupts = at(event, lambda state: setattr(state.loop, "interrupted_by", 15))
        with pytest.raises(SystemExit):
            trained(ranks, interrupts, model=model, max_duration="1ep")
        return model[0].running_mean

    one, other = ThreadRanks.run(program)
    assert one.tolist() == other.tolist()
