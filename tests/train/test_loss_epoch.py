"""`train/loss_epoch`: the mean of the training loss over an epoch's rows, at EPOCH_END."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from engine_core.callbacks.checkpoint_saver import CheckpointSaver

from .parts import Memory, acting, at, batches, linear, rows, trainer

MEAN = "train/loss_epoch"


def logged(data, **settings):
    """Return the losses of the batches, and the means with their steps."""
    memory = Memory()
    trainer(data, loggers=memory, **settings).fit()
    return [loss for _, loss in memory.values("train/loss")], memory.values(MEAN)


@pytest.mark.parametrize("settings", [{}, {"microbatch_size": 3}, {"eval_dataloader": batches(3)}])
def test_it_is_the_mean_over_the_rows_of_the_epoch(settings):
    losses, means = logged(batches(8, 8, 2), max_duration="2ep", **settings)
    expected = [
        sum(loss * n for loss, n in zip(part, (8, 8, 2), strict=True)) / 18 for part in (losses[:3], losses[3:])
    ]
    assert means == [(3, pytest.approx(expected[0])), (6, pytest.approx(expected[1]))]


def test_it_weighs_batches_as_the_loss_of_an_evaluation_does_and_sums_add_up():
    (inputs, targets), still = rows(8), {"optimizers": lambda p: torch.optim.SGD(p, lr=0.0)}
    targets[:3] = -100
    data = [(inputs[:4], targets[:4]), (inputs[4:], targets[4:])]
    made = trainer(data, loggers=(memory := Memory()), **still)
    made.fit()
    assert memory.values(MEAN)[0][1] == pytest.approx(made.eval(data)["eval/loss"])
    summed, means = logged(batches(8, 2), loss_fn=nn.CrossEntropyLoss(reduction="sum"), **still)
    assert means == [(2, pytest.approx(sum(summed)))]


@pytest.mark.parametrize("size", [None, 3])
def test_rows_that_an_algorithm_dropped_do_not_count(size):
    def keep_five(event, state):
        state.batch = tuple(item[:5] for item in state.batch)

    algorithm = acting(keep_five, "after_dataloader", writes=("batch",))
    losses, means = logged(batches(8, 3), algorithms=algorithm, microbatch_size=size)
    assert losses[0] == pytest.approx(F.cross_entropy(linear()(rows(8, 0)[0][:5]), rows(8, 0)[1][:5]).item())
    assert means == [(2, pytest.approx((losses[0] * 5 + losses[1] * 3) / 8))]


def test_a_skipped_step_does_not_count():
    skip_second = at("after_train_batch", lambda state: state.timestamp.batch == 1 and state.skip_step())
    losses, means = logged(batches(8, 8, 8), callbacks=skip_second)
    assert means == [(3, pytest.approx((losses[0] + losses[2]) / 2))]


def test_an_epoch_in_two_fits_has_one_mean_and_half_an_epoch_none():
    memory, whole = Memory(), logged(batches(8, 8, 2), max_duration="2ep")[1]
    made = trainer(batches(8, 8, 2), max_duration="2ep", loggers=memory)
    made.fit("2ba")
    assert memory.values(MEAN) == []
    made.fit()
    assert memory.values(MEAN) == whole


@pytest.mark.parametrize("batch", [1, 3])
def test_a_resumed_run_logs_the_mean_of_the_run_that_was_not_interrupted(batch, tmp_path):
    def run(memory, duration, **settings):
        with trainer(batches(8, 5, 8), max_duration="2ep", loggers=memory, seed=1, **settings) as made:
            made.fit(duration)

    whole, first, second = Memory(), Memory(), Memory()
    run(whole, "2ep")
    run(first, f"{batch}ba", callbacks=CheckpointSaver(tmp_path, "1ba"))
    run(second, f"{6 - batch}ba", callbacks=CheckpointSaver(tmp_path, "1ba"), autoresume=True)
    assert first.metrics + second.metrics == whole.metrics


def test_a_checkpoint_from_before_there_was_a_mean_can_be_resumed():
    readings = trainer()._session.readings
    readings.load_state_dict({"was_finite": True})
    assert readings.state_dict() == {"was_finite": True, "epoch_loss": [0.0, 0.0], "is_sum": False}
