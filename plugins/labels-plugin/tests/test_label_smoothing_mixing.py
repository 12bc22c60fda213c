"""With an algorithm that mixes targets: what is mixed is smoothed, in whatever order the two are listed."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from engine_core import Algorithm, AlgorithmMetadata, Engine, Event, Logger, State
from labels_plugin import LabelSmoothing, smooth_labels

OUTPUTS, LABELS = torch.randn(4, 3, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2, -100])


class Mix(Algorithm):
    """Takes half of each target from the next row, and puts the targets back as it found them."""

    metadata = AlgorithmMetadata(events=("before_loss", "after_loss"), tags=("target_mixing",), writes=("batch",))
    found: Any = None

    def match(self, event: Event, state: State) -> bool:
        return event in self.metadata.events

    def apply(self, event: Event, state: State, logger: Logger) -> None:
        if event is Event.BEFORE_LOSS:
            self.found = state.batch_get_item(1)
            state.batch_set_item(1, 0.5 * self.found + 0.5 * self.found.roll(-1, 0))
        else:
            state.batch_set_item(1, self.found)


@pytest.mark.parametrize("smoothing_first", [True, False])
def test_the_loss_is_the_mixture_of_two_smoothed_losses_and_the_labels_come_back(smoothing_first: bool) -> None:
    mix = Mix()
    algorithms = [LabelSmoothing(0.3), mix] if smoothing_first else [mix, LabelSmoothing(0.3)]
    state = State(algorithms=algorithms, batch=(None, LABELS), outputs=OUTPUTS, loss_fn=F.cross_entropy)
    with Engine(state, Logger()) as engine:
        engine.run_event(Event.BEFORE_LOSS)
        assert torch.equal(mix.found, smooth_labels(OUTPUTS, LABELS, 0.3))
        loss = F.cross_entropy(OUTPUTS, state.batch[1])
        engine.run_event(Event.AFTER_LOSS)
    torchs = [F.cross_entropy(OUTPUTS, y, label_smoothing=0.3) for y in (LABELS, LABELS.roll(-1))]
    torch.testing.assert_close(loss, (torchs[0] + torchs[1]) / 2)
    assert state.batch[1] is LABELS
