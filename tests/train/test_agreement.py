"""What ranks agree on in a step, with ranks that are only played."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from engine_core import Algorithm, AlgorithmMetadata, Callback, Event, Logger, State, Trainer
from engine_core.errors import ArgumentError
from engine_core.ranks import Ranks
from engine_core.testing import ThreadRanks
from engine_core.trainer.agreement import Agreement
from engine_core.trainer.data.index_order import IndexOrder


class Interrupted(Ranks):
    """A signal comes while this rank waits for its first message."""

    agreement: Any = None

    def table(self, numbers: Sequence[float]) -> list[list[float]]:
        """Return the numbers of this rank."""
        table = super().table(numbers)
        if self.agreement is not None:
            self.agreement.signal, self.agreement = 15, None
        return table


def test_a_signal_that_comes_while_a_rank_waits_counts_from_the_next_message() -> None:
    state = State(ranks=(ranks := Interrupted()))
    agreement = ranks.agreement = Agreement(state, set(), Any)
    agreement.agree_on_end()
    assert state.interrupted_by is None
    agreement.agree_on_end()
    assert state.interrupted_by == 15


def test_a_fit_forgets_what_ended_the_one_before() -> None:
    state = State()
    agreement = Agreement(state, set(), Any)
    state.stop_training()
    agreement.signal = 2
    agreement.agree_on_end()
    state.stop_requested = False
    agreement.begin_fit()
    assert (agreement.stop, agreement.signal) == (False, None)


def test_a_loader_that_gives_batches_out_of_order_is_refused_on_several_ranks() -> None:
    loader: Any = DataLoader([1, 2])
    loader.in_order = False
    IndexOrder(loader)
    with pytest.raises(ArgumentError, match="leave in_order out"):
        IndexOrder(loader, Ranks())


class SkipsOneStep(Callback):
    """Asks after the message at the loss, on the last rank alone."""

    every_rank = True

    def before_backward(self, state: State, logger: Logger) -> None:
        """Leave the second step out."""
        if state.rank == state.world_size - 1 and state.timestamp.batch == 1:
            state.skip_step()


class DoublesTheLoss(Algorithm):
    """Changes the loss after the message at the loss."""

    metadata = AlgorithmMetadata(events=[Event.BEFORE_BACKWARD], writes=["loss"])

    def match(self, event: Event, state: State) -> bool:
        """Run at each backward pass."""
        return True

    def apply(self, event: Event, state: State, logger: Logger) -> None:
        """Double it."""
        state.loss = 2 * state.loss


class Losses(Callback):
    """Keeps the loss of each batch."""

    every_rank = True

    def __init__(self) -> None:
        self.seen: list[float] = []

    def batch_end(self, state: State, logger: Logger) -> None:
        """Keep it."""
        self.seen.append(state.loss.item())


def trained(ranks: Ranks | None, made: Callable[[], Algorithm | Callback]) -> tuple[list[float], list[float]]:
    """Return the weights after three steps, and the losses."""
    model, losses, plugin = torch.nn.Linear(2, 1, bias=False), Losses(), made()
    torch.nn.init.ones_(model.weight)
    with Trainer(
        model,
        [(torch.arange(6.0).reshape(3, 2) / 6, torch.ones(3, 1))] * 3,
        max_duration="3ba",
        loss_fn=torch.nn.MSELoss(),
        optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
        algorithms=[plugin] if isinstance(plugin, Algorithm) else [],
        callbacks=[plugin, losses] if isinstance(plugin, Callback) else [losses],
        parallel=ranks,
        progress_bar=False,
    ) as trainer:
        trainer.fit()
    return model.weight[0].tolist(), losses.seen


@pytest.mark.parametrize("made", [SkipsOneStep, DoublesTheLoss])
def test_what_is_done_before_backward_counts_for_the_step_on_all_ranks(made: type[Any]) -> None:
    (weights, losses), (same_weights, same_losses) = ThreadRanks.run(lambda ranks: trained(ranks, made))
    expected_weights, expected_losses = trained(None, made)
    assert weights == same_weights == pytest.approx(expected_weights)
    assert losses == same_losses == pytest.approx(expected_losses)
