"""The loss over batches: smoothed without bias, a mean of what counts, and read from a device without waiting."""

import math

import pytest
import torch

from engine_core.objective import LossMeter


def meter(*taken):
    """Return one that has taken these losses and counts."""
    losses = LossMeter()
    for value, count in taken:
        losses.take(torch.tensor(value), count)
    return losses


def test_the_smoothed_loss_is_the_exponential_mean_without_the_bias_of_its_start():
    values = [4.0, 1.0, 7.0, 2.0]
    weights = [0.98 ** (len(values) - 1 - place) for place in range(len(values))]
    expected = sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
    assert meter(*((value, 1) for value in values)).smoothed == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("taken", "mean"),
    [
        ([], None),
        ([(1.0, 4), (4.0, torch.tensor(2))], 2),
        ([(3.0, torch.tensor(4.5)), (math.nan, torch.tensor(0))], 3),
        ([(math.nan, 0)], None),
        ([(3.0, None), (4.0, None)], 7),
    ],
)
def test_the_mean_is_the_sum_of_all_by_what_counts_and_of_sums_their_sum(taken, mean):
    losses = meter(*taken)
    assert losses.mean == mean
    losses.restart()
    assert losses.mean is None


def test_a_loss_that_is_not_finite_is_shown_and_the_next_one_starts_anew():
    losses = meter((1.0, 1), (math.nan, 1))
    assert math.isnan(losses.smoothed)
    losses.take(torch.tensor(3.0), 1)
    assert losses.smoothed == pytest.approx(3)
    assert math.isnan(losses.mean)


class Event:
    """A device's event that is reached when the test says so."""

    def __init__(self):
        self.is_reached, self.waits = False, 0

    def record(self, stream):
        self.stream = stream

    def query(self):
        return self.is_reached

    def synchronize(self):
        self.is_reached, self.waits = True, self.waits + 1


class OnDevice:
    """A loss on a device: reading it would wait, copying it does not."""

    is_cuda, device = True, "cuda:0"

    def __init__(self, value, elements=1):
        self.value, self.numel = value, lambda: elements

    def detach(self):
        return self

    def to(self, where, non_blocking):
        assert (where, non_blocking) == ("cpu", True)
        return torch.tensor(self.value)

    def item(self):
        pytest.fail("this waits for the device")


def test_a_loss_on_a_gpu_is_read_when_its_copy_is_there_and_waited_for_only_by_flush(monkeypatch):
    made, losses = [Event() for _ in range(3)], LossMeter()
    monkeypatch.setattr(torch.cuda, "Event", iter(made).__next__)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    losses.take(OnDevice(1.0), 1)
    losses.take(OnDevice([7.0, 7.0], elements=2), 1)  # passed over
    losses.take(OnDevice(2.0), 1)
    assert losses.count == 0
    made[0].is_reached = True
    losses.take(OnDevice(3.0), 1)
    assert (losses.count, losses.total) == (1, 1)
    losses.flush()
    assert (losses.count, losses.total) == (3, 6)
    assert [event.waits for event in made] == [0, 1, 1]
    assert {event.stream for event in made} == {"stream of cuda:0"}


@pytest.mark.parametrize("loss", [None, (torch.tensor(1.0),), {"a": 1.0}, torch.ones(2)])
def test_what_is_not_one_number_is_passed_over(loss):
    losses = LossMeter()
    losses.take(loss, 1)
    assert (losses.smoothed, losses.mean) == (None, None)
