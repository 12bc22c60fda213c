"""The loss as it is shown: smoothed without bias, meant over rows, and read from a device without waiting."""

import math
from typing import ClassVar

import pytest
import torch

from engine_core.callbacks.running_loss import RunningLoss


def test_the_smoothed_loss_is_the_exponential_mean_without_the_bias_of_its_start():
    losses, values = RunningLoss(), [4.0, 1.0, 7.0, 2.0]
    assert losses.smoothed is None
    for value in values:
        losses.take(torch.tensor(value), weight=1)
    weights = [0.98 ** (len(values) - 1 - place) for place in range(len(values))]
    expected = sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
    assert losses.smoothed == pytest.approx(expected, rel=1e-12)


def test_the_mean_counts_each_batch_by_its_rows_and_restarts():
    losses = RunningLoss()
    losses.take(torch.tensor(1.0), weight=4)
    losses.take(torch.tensor(4.0), weight=2)
    assert losses.total / losses.weight == 2
    losses.restart()
    assert (losses.total, losses.weight) == (0, 0)


def test_a_batch_in_which_no_target_counts_does_not_count():
    losses = RunningLoss()
    losses.take(torch.tensor(3.0), torch.tensor(4))
    losses.take(torch.tensor(math.nan), torch.tensor(0))
    assert losses.total / losses.weight == 3


def test_a_loss_that_is_not_finite_is_shown_and_the_next_one_starts_anew():
    losses = RunningLoss()
    losses.take(torch.tensor(1.0), weight=1)
    losses.take(torch.tensor(math.nan), weight=1)
    assert math.isnan(losses.smoothed)
    losses.take(torch.tensor(3.0), weight=1)
    assert losses.smoothed == pytest.approx(3)
    assert math.isnan(losses.total)


@pytest.mark.parametrize("loss", [None, (torch.tensor(1.0),), {"a": 1.0}, torch.ones(2)])
def test_what_is_not_one_number_is_passed_over(loss):
    losses = RunningLoss()
    losses.take(loss, weight=1)
    assert (losses.smoothed, losses.weight) == (None, 0)


class Event:
    """A device's event that is reached when the test says so."""

    made: ClassVar[list["Event"]] = []

    def __init__(self):
        self.is_reached, self.waits = False, 0
        self.made.append(self)

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
        self.value, self.elements = value, elements

    def detach(self):
        return self

    def numel(self):
        return self.elements

    def to(self, where, non_blocking):
        assert (where, non_blocking) == ("cpu", True)
        return torch.tensor(self.value)

    def item(self):
        pytest.fail("this waits for the device")


def test_a_loss_on_a_gpu_is_read_when_its_copy_is_there_and_waited_for_only_by_flush(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    Event.made, losses = [], RunningLoss()
    losses.take(OnDevice(1.0), weight=1)
    losses.take(OnDevice([7.0, 7.0], elements=2), weight=1)  # passed over
    losses.take(OnDevice(2.0), weight=1)
    assert losses.weight == 0
    Event.made[0].is_reached = True
    losses.take(OnDevice(3.0), weight=1)
    assert (losses.weight, losses.total) == (1, 1)
    losses.flush()
    assert (losses.weight, losses.total) == (3, 6)
    assert [event.waits for event in Event.made] == [0, 1, 1]
    assert {event.stream for event in Event.made} == {"stream of cuda:0"}
